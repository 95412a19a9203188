"""What a data position asks of one kind of loader.

`DataPosition` counts what it has handed out; a source knows how its kind of loader begins a pass, what decides the
order of its batches, and how to stand again behind a number of batches that were delivered. A loader fetches ahead,
so its own counters say what was fetched; only the position knows what was delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from segue.errors import Finding


@dataclass(frozen=True)
class Progress:
    """How far a training has come in its data."""

    epoch: int
    """The pass under way, counted from 0; between two passes the one to come."""
    delivered: int
    """Batches of this pass that were handed out, the one whose body may still be running included."""
    is_inside: bool
    """Whether a pass is under way: from its first batch on, until the loop asked for one more and got none."""


class Source(Protocol):
    """One kind of loader, as a `DataPosition` needs it."""

    kind: str
    """The name of the kind in a record, such as `stateful_loader`."""
    loader: Any
    """The object that was handed in."""

    @property
    def keeps_place(self) -> bool:
        """Whether the loader's own state is right behind a fetch that raised, after which the loop went on."""
        ...

    def contract(self) -> Mapping[str, Any]:
        """Return what decides the order of the batches, by name, as plain values; read-only, and cheap."""
        ...

    def begin(self, epoch: int) -> Iterator[Any]:
        """Begin a new pass and return its batches. `set_epoch` of what has one was called already."""
        ...

    def position(self, progress: Progress) -> Any:
        """Return what `place` needs beside the counts, as plain values, tensors and arrays. Changes and draws nothing.

        Called at any moment: before the first pass, in the body of a batch, and between passes.

        Raises:
            UnsupportedState: If this loader could not be placed there again exactly; the hint says what to write.
        """
        ...

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        """Yield what keeps `place` from working, beside differences in the contract. Changes and draws nothing.

        Args:
            position: From `position`, of a record; not to be trusted.
            progress: That of the record.
            contract: That of the record.
            scope: What the component is called, such as `component.data`; begins each finding's code.
        """
        ...

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        """Stand where the record stood: return the rest of the pass, its iterator built; `None` between passes.

        May draw: the random streams are restored after it. The contract equals this loader's, but for entries that the
        caller has accepted (of those that `may_differ` names).
        """
        ...

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        """Return what a restore does if the caller accepts a difference in this entry of the contract; `None` if it can't."""
        ...

    def __len__(self) -> int:
        """Return the number of batches of a whole pass; raises `TypeError` where nobody knows."""
        ...
