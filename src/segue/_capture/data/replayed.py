"""Any iterable, placed by running it again from the beginning of the pass.

The streams are put back as they stood when the pass began, the pass is begun again, and what was delivered is fetched
once more and dropped. It costs that time, and is exact for every iterable whose pass follows from its configuration,
its epoch and the streams at its beginning; also for what workers draw, since their seeds come from those streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from segue._capture.data import beginning
from segue._capture.data.identity import iterable_entries
from segue._capture.data.source import Progress
from segue._capture.data.watch import Watch
from segue.errors import ComponentMismatch, Finding, UnsupportedState


class ReplayedSource:
    """An iterable that is run again. `iter` of it must begin a pass anew, and the same way each time."""

    kind = "replayed"

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._beginning: Any = None
        self._watch = Watch(self.loader)

    @property
    def keeps_place(self) -> bool:
        return False

    def contract(self) -> Mapping[str, Any]:
        return iterable_entries(self.loader)

    def begin(self, epoch: int) -> Iterator[Any]:
        self._beginning = beginning.take(self.loader)
        return self._watched(iter(self.loader))

    def position(self, progress: Progress) -> Any:
        if not progress.is_inside:
            return None
        refuse_mixed(self._watch)
        return {"beginning": self._beginning}

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        if progress.is_inside:
            yield from wrong_beginning(position, self.loader, scope)

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        if not progress.is_inside:
            return None
        self._beginning = position["beginning"]
        beginning.put(self._beginning, self.loader)
        iterator = iter(self.loader)
        skip(iterator, progress.delivered)
        return self._watched(iterator)

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        return None if progress.is_inside else "begins the next pass with what the program has now"

    def __len__(self) -> int:
        return len(self.loader)

    def _watched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self._watch = Watch(self.loader)
        return self._watch.over(iterator)


def skip(iterator: Iterator[Any], number: int) -> None:
    """Fetch what was delivered already, and drop it.

    Raises:
        ComponentMismatch: If the pass ends before.
    """
    for done in range(number):
        try:
            next(iterator)
        except StopIteration:
            raise ComponentMismatch(
                "the data ended before the place where the record stood", code="component.data.shorter",
                where="data", expected=f"{number} batches", found=f"{done} batches",
                hint="build loader and dataset as they were when the record was captured",
            ) from None  # fmt: skip


def refuse_mixed(watch: Watch) -> None:
    """Raise if the source could not be run again: it draws as it goes from streams that the training draws from too."""
    if watch.mixed:
        raise UnsupportedState(
            "the data draws from a random stream between draws of the training, so running it again from the "
            "beginning of the pass would give another order", code="capture.data.mixed", where="data",
            found=f"draws in the middle of a pass from a stream of the training: {', '.join(sorted(watch.mixed))}",
            hint="give what draws there a generator of its own (`torch.Generator`, `random.Random`), or "
                 "`state_dict` and `load_state_dict`; or fetch in workers, which have streams of their own",
        )  # fmt: skip


def wrong_beginning(position: Any, loader: Any, scope: str) -> Iterable[Finding]:
    """Yield what keeps the streams of a pass's beginning from being put back."""
    clause = (
        beginning.wrong(position.get("beginning"), loader)
        if type(position) is dict
        else "the record holds no position"
    )
    if clause is not None:
        yield Finding(ComponentMismatch, f"{scope}.beginning", clause, scope)
