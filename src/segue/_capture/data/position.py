"""The place of a training in its data: counted where batches are handed out, restored with its iterator built."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from segue._capture.data.contract import differences, is_contract, moved
from segue._capture.data.epochs import Epochs, is_epochs
from segue._capture.data.kinds import loses_draws, source_of
from segue._capture.data.pass_of import Pass
from segue._capture.data.source import Progress
from segue._capture.data.worker_draws import WorkerDraws
from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._record.sections import ComponentRecord
from segue._record.tree import thaw
from segue.errors import ComponentMismatch, Finding, MismatchError, StaleIterator, UnsupportedState

_FIELDS = {"kind", "contract", "progress", "epochs", "position", "accepted"}


class DataPosition:
    """A loader that knows how much of it was delivered, and stands there again after a restore.

    Iterate over this instead of the loader, and register it: `Training(..., components={"data": data})`.

    Args:
        loader: torchdata's `StatefulDataLoader`, `nodes.Loader` or node; a streamed dataset of `datasets`; a plain
            `DataLoader` over an `ExactSampler`, over no shuffling, or over a sampler with a state; or any iterable with
            `state_dict` and `load_state_dict`, which must say in the body of a batch that it was delivered.
        replay: Stand there again by running the pass again from its beginning and dropping what was delivered, whatever
            the loader saves: for any iterable that begins anew at each `iter`. Also what workers draw is then
            exact, unless they live on from pass to pass.

    Raises:
        UnsupportedState: If this kind of loader can't be placed; the hint says what to write.

    Guarantees:
        What was handed out counts as delivered, also while the body of that batch runs; what is fetched ahead does not.
        In the body of the last batch the rest of the pass is empty; behind the loop the next pass is meant. Leaving
        a pass by `break` ends it. Samplers and datasets with a `set_epoch` are told the pass, unless the program does.

    Cost:
        Restoring by a loader's own state costs what the loader takes; `replay`, samplers of unknown classes, shuffle
        buffers and iterables without state cost fetching again what was delivered of the pass.

    Collective:
        No.
    """

    # A pass under way is a position, and built anew; a random generator in it is one of the loader's.
    _called_in_paths: ClassVar[Mapping[str, str | None]] = dict.fromkeys(
        ("_source", "_epochs", "_progress", "_pass", "_token", "_rest", "_placed", "_draws")
    )

    def __init__(self, loader: Any, *, replay: bool = False) -> None:
        self.loader = loader
        self._source = source_of(loader, replay=replay)
        self._epochs = Epochs(loader)
        self._draws = WorkerDraws()
        self._progress = Progress(0, 0, False)
        self._pass: weakref.ref[Pass] | None = None  # a pass that its loop has dropped has ended
        self._token: object = None  # of the pass under way
        self._rest: Iterator[Any] | None = (
            None  # of the pass that a restore has placed, until it is iterated over
        )
        self._has_failed = False  # a fetch of the pass under way, after which its loop may have gone on
        self._placed: Any = None  # the record of the last restore, as long as nothing was delivered since

    @property
    def epoch(self) -> int:
        """The pass under way, or the next one between two; counted from 0."""
        return self._progress.epoch

    @property
    def delivered(self) -> int:
        """Batches of this pass that were handed out; 0 between two passes."""
        return self._progress.delivered

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        """Go on with the pass that a restore has placed, or begin the next one; an older iterator is stale from now on."""
        self._drop_pass()
        rest, self._rest = self._rest, None
        if rest is None:
            rest = self._begin()
        self._token = object()
        batches = Pass(rest, self, self._token)
        self._pass = weakref.ref(batches)
        return batches

    def _begin(self) -> Iterator[Any]:
        if self._progress.is_inside:  # left without an end, as by a second `iter`
            self._finish()
        self._placed = None
        self._epochs.begin(self._progress.epoch)
        with self._watching():
            batches = self._source.begin(self._progress.epoch)
        self._progress = replace(self._progress, is_inside=True)
        return batches

    @property
    def drawn_in_workers(self) -> tuple[str, ...]:
        """The global streams that workers have drawn from, `python`, `numpy` or `torch`, where a resume would draw others."""
        return self._draws.streams

    def _watching(self) -> contextlib.AbstractContextManager[None]:
        return self._draws.watching(self.loader) if loses_draws(self._source) else contextlib.nullcontext()

    def took(self, token: object) -> None:
        """Count a batch that is handed out now."""
        self.refuse_stale(token)
        self._placed = None
        self._progress = replace(self._progress, delivered=self._progress.delivered + 1)

    def failed(self, token: object) -> None:
        """Take notice that fetching a batch raised: what was fetched and what was delivered may differ from now on."""
        self._has_failed = self._has_failed or self._token is token

    def finished(self, token: object) -> None:
        """Take notice that a pass has ended, or was left."""
        if self._token is token:
            self._token = None
            self._placed = None
            self._finish()

    def refuse_stale(self, token: object) -> None:
        """Raise if a batch is asked of a pass that another one, or a restore, has replaced."""
        if self._token is not token:
            raise StaleIterator(
                "this iterator is of another time: a second `iter(data)` began, or a restore came in between",
                where="data", hint="begin a new `for batch in data:` after `resume` and `restore`",
            )  # fmt: skip

    def _finish(self) -> None:
        self._progress = Progress(self._progress.epoch + 1, 0, False)
        self._has_failed = False

    def _drop_pass(self) -> None:
        stale = None if self._pass is None else self._pass()
        self._pass = self._token = None
        if stale is not None:
            stale.drop()

    def capture(self) -> Any:
        """Return the position and the contract. Builds no iterator and draws nothing."""
        return thaw(self._captured())

    def _captured(self) -> Any:
        if self._placed is not None:
            return {**self._placed, "epochs": self._epochs.values()}
        progress = self._progress
        if self._has_failed and not self._source.keeps_place:
            raise UnsupportedState(
                "fetching a batch raised and the pass went on, so batches that were fetched are not those that were delivered",
                code="capture.data.failed", where="data", found=type_name(self.loader),
                hint="let the dataset skip or replace what can't be read, or leave the loop and begin the next pass",
            )  # fmt: skip
        return {
            "kind": self._source.kind,
            "contract": freeze(dict(self._source.contract()), "data"),
            "progress": {
                "epoch": progress.epoch,
                "delivered": progress.delivered,
                "is_inside": progress.is_inside,
            },
            "epochs": self._epochs.values(),
            "position": self._source.position(progress),
            "accepted": [],
        }

    def check(self, state: Any) -> Iterable[str]:
        """Return what keeps a position from being restored here, as clauses."""
        return [finding.what for finding in self.findings(state, "component.data")]

    def findings(self, state: Any, scope: str) -> Iterator[Finding]:
        """Yield everything in which loader and record differ, by the entry of the contract; changes nothing.

        Args:
            state: From `capture`, as it is in a record.
            scope: What the component is called, such as `component.data`.
        """
        state = freeze(state, scope)
        clause = _wrong(state)
        if clause is not None:
            yield Finding(ComponentMismatch, f"{scope}.position", clause, scope)
            return
        if state["kind"] != self._source.kind:
            yield Finding(
                ComponentMismatch, f"{scope}.kind", "another kind of loader", scope, state["kind"], self._source.kind,
                "build the loader as it was when the record was captured",
            )  # fmt: skip
            return
        progress, contract, position = Progress(**state["progress"]), state["contract"], state["position"]
        problems = list(self._source.check(position, progress, contract, scope))
        yield from problems
        yield from differences(contract, self._source, None if problems else position, progress, scope)

    def restore(self, state: Any) -> None:
        """Stand where the record stood; the iterator is built here, which draws from the random streams.

        Raises:
            MismatchError: If the record does not fit this loader; nothing was changed.
        """
        scope = "component.data"
        refused = [
            finding
            for finding in self.findings(state, scope)
            if not (finding.admissible and moved([finding], scope)[0] in state["accepted"])
        ]
        if refused:
            raise MismatchError.of(refused)
        state = freeze(state, "data")
        progress = Progress(**state["progress"])
        self._drop_pass()
        self._rest = None
        self._epochs.place(state["epochs"])
        with self._watching():
            self._rest = self._source.place(state["position"], progress, state["contract"])
        self._progress = progress
        self._has_failed = False
        self._placed = self._as_placed(state)

    def _as_placed(self, state: dict[str, Any]) -> Any:
        """Return what a capture right behind the restore says: what was restored, of the loader that there is now."""
        if "num_workers" in state["accepted"]:
            return None  # it is of other workers; the loader tells
        return {**state, "contract": freeze(dict(self._source.contract()), "data"), "accepted": []}


def with_accepted(
    record: ComponentRecord, value: object, scope: str, accept: Collection[str]
) -> ComponentRecord:
    """Return the record of a position with the entries of its contract that were accepted as changed."""
    if not isinstance(value, DataPosition) or _wrong(record.tree) is not None:
        return record
    differ = moved(value.findings(thaw(record.tree), scope), scope)
    accepted = sorted({name for name in differ if f"{scope}.{name}" in accept})
    return replace(record, tree={**record.tree, "accepted": accepted}) if accepted else record


def _wrong(state: Any) -> str | None:
    """Tell what is wrong with what a record holds, as a clause; `None` if it has the form of a position."""
    if type(state) is not dict or state.keys() != _FIELDS or type(state["kind"]) is not str:
        return "the record holds no position in data"
    if not is_contract(state["contract"]) or not is_epochs(state["epochs"]):
        return "the record holds no contract of a position in data"
    if type(state["accepted"]) is not list:
        return "the record holds no position in data"
    progress = state["progress"]
    if type(progress) is not dict or progress.keys() != {"epoch", "delivered", "is_inside"}:
        return "the record does not say how far the data was read"
    counts = (progress["epoch"], progress["delivered"])
    if type(progress["is_inside"]) is not bool or any(
        type(count) is not int or count < 0 for count in counts
    ):
        return "the record does not say how far the data was read"
    if progress["delivered"] and not progress["is_inside"]:
        return "the record says that batches of no pass were delivered"
    return None
