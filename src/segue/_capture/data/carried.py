"""What a dataset that keeps its own position does with it in the next pass.

After `load_state_dict` a dataset may keep the place where it resumed, and begin every later pass there (the reason of
passes that are short for ever). The uninterrupted run never loaded anything. So before the first pass that begins after
a restore it is told where it stands: at the end of a pass if its state says more than that of a new one, since it may
carry something on; as new if not. Is that pass then empty, its state meant the end of the last one, and it is told to
begin as new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from segue._capture.data.classes import COUNTING_SAMPLER, STREAMED_DATASET, is_a
from segue._capture.plain import freeze
from segue._record.tree import same, thaw


def prepare(
    stateful: Any,
    fresh: Any,
    begin: Callable[[], Iterator[Any]],
    end: Any = None,
    again: Callable[[], Iterator[Any]] | None = None,
) -> Iterator[Any]:
    """Begin the first pass after a restore.

    Args:
        stateful: What has `state_dict` and `load_state_dict`, and is at the end of a pass, or new.
        fresh: Its state before anything was loaded, frozen.
        begin: Begins the pass.
        end: The state of the end of a pass, frozen, if it was recorded there; it is asked if not.
        again: Begins it a second time, where that must not draw what `begin` has drawn already.
    """
    if is_a(stateful, STREAMED_DATASET):
        stateful.load_state_dict(
            None
        )  # else it goes on where it resumed, in each pass of the same epoch (datasets 5.2)
        return begin()
    if is_a(stateful, COUNTING_SAMPLER):
        stateful.load_state_dict(
            thaw(fresh)
        )  # a count of the last pass, which the next one would begin behind
        return begin()
    if end is None:
        end = freeze(stateful.state_dict(), "data")
    carries = not same(end, fresh)
    stateful.load_state_dict(thaw(end if carries else fresh))
    return OrAnew(begin(), lambda: _anew(stateful, fresh, again or begin)) if carries else begin()


def _anew(stateful: Any, fresh: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    stateful.load_state_dict(thaw(fresh))
    return begin()


class OrAnew(Iterator[Any]):
    """An iterator that is begun anew if it has nothing at all."""

    def __init__(self, first: Iterator[Any], anew: Callable[[], Iterator[Any]]) -> None:
        self._iterator = first
        self._anew: Callable[[], Iterator[Any]] | None = anew

    def __next__(self) -> Any:
        anew, self._anew = self._anew, None
        try:
            return next(self._iterator)
        except StopIteration:
            if anew is None:
                raise
        self._iterator = anew()
        return next(self._iterator)
