"""Any iterable with `state_dict` and `load_state_dict`, and streamed datasets whose own state is whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from segue._capture.data import carried
from segue._capture.data.classes import STREAMED_DATASET, is_a
from segue._capture.data.identity import iterable_entries
from segue._capture.data.source import Progress
from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._record.tree import same, thaw
from segue.errors import ComponentMismatch, Finding, UnsupportedState


class StatefulIterable:
    """An iterable that is asked where it stands."""

    kind = "stateful_iterable"

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._fresh: Any = None  # the state before the first pass; asked for when it is needed first
        self._is_resumed = False
        self._end: Any = None
        self._stays = False
        self._is_left = self._was_left = False

    @property
    def keeps_place(self) -> bool:
        return True

    def contract(self) -> Mapping[str, Any]:
        return iterable_entries(self.loader)

    def begin(self, epoch: int) -> Iterator[Any]:
        self._remember_fresh()
        self._was_left = self._is_left
        is_resumed, self._is_resumed, end, self._end = self._is_resumed, False, self._end, None
        if is_resumed:
            return self._watched(carried.prepare(self.loader, self._fresh, self._anew, end))
        return self._watched(self._anew())

    def _anew(self) -> Iterator[Any]:
        return iter(self.loader)

    def position(self, progress: Progress) -> Any:
        if progress.delivered:
            self._refuse_one_behind()
        elif (self._was_left if progress.is_inside else self._is_left) and not is_a(
            self.loader, STREAMED_DATASET
        ):
            raise left_in_the_middle()
        return {"state": freeze(self.loader.state_dict(), "data")}

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        if type(position) is not dict or "state" not in position:
            yield Finding(ComponentMismatch, f"{scope}.position", "the record holds no position", scope)

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        self._remember_fresh()
        self._is_resumed, self._is_left, self._end = True, False, None
        if progress.delivered:
            self.loader.load_state_dict(thaw(position["state"]))
            return self._watched(self._anew())
        self._end = position["state"]
        return self.begin(progress.epoch) if progress.is_inside else None

    def _remember_fresh(self) -> None:
        if self._fresh is None:
            self._fresh = freeze(self.loader.state_dict(), "data")

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        return None if progress.is_inside else "begins the next pass with what the program has now"

    def __len__(self) -> int:
        return len(self.loader)

    def _watched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Look at whether the state moves with the first batch: one that doesn't is one behind in every body."""
        self._stays, self._is_left = False, True
        before = freeze(self.loader.state_dict(), "data")
        first = True
        for batch in iterator:
            if first:
                self._stays = same(before, freeze(self.loader.state_dict(), "data"))
                first = False
            yield batch
        self._is_left = False

    def _refuse_one_behind(self) -> None:
        if self._stays:
            raise UnsupportedState(
                "the state of the data did not move when its first batch was handed out, so it stands one batch behind, "
                "and that batch would be trained twice", code="capture.data.behind", where="data",
                found=type_name(self.loader), hint="let its `__iter__` count before it yields, not after: "
                "`self.position += 1` above `yield`",
            )  # fmt: skip


def left_in_the_middle() -> UnsupportedState:
    return UnsupportedState(
        "the last pass was left before its end, and nobody can tell whether the data begins the next one anew or goes on",
        code="capture.data.left", where="data",
        hint="save inside the loop before leaving it, or let the pass run to its end",
    )  # fmt: skip
