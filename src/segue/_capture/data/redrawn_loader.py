"""A plain `DataLoader` over a sampler that can hand out a pass once more from its beginning.

That is one with `state_dict` and `load_state_dict`, from its state at the beginning of the pass and with the random
streams of then, since what it says later counts what was fetched; and torch's `DistributedSampler`, whose order follows
from its settings and its epoch. Indices that were delivered are drawn again and compared by a digest; no sample is
loaded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from segue._capture.data import beginning
from segue._capture.data.classes import has_state
from segue._capture.data.exact_loader import NEXT_PASS, SAME_SAMPLES
from segue._capture.data.identity import dataset_entries, sampler_entries
from segue._capture.data.own_indices import Delivered, Drawn, OwnIndices
from segue._capture.data.replayed import refuse_mixed, wrong_beginning
from segue._capture.data.source import Progress
from segue._capture.data.watch import Watch
from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._record.tree import thaw
from segue.errors import ComponentMismatch, Finding

_SETTINGS = {"state", "beginning", "digest", "draws_seed", "has_workers"}


class RedrawnLoader:
    """A plain `DataLoader` whose sampler draws its pass again.

    Args:
        loader: The loader.
        batches: What its indices come from: the sampler, or torch's `BatchSampler` over it.
        sampler: What keeps the order.
    """

    kind = "redrawn_loader"

    def __init__(self, loader: DataLoader[Any], batches: Any, sampler: Any) -> None:
        self.loader = loader
        self._batches = batches
        self._sampler = sampler
        self._own = OwnIndices(loader, batches)
        self._state: Any = None  # the sampler's, at the beginning of the pass
        self._beginning: Any = None
        self._draws_seed = True
        self._drawn: Drawn | None = None
        self._watch = Watch(self.loader)

    @property
    def keeps_place(self) -> bool:
        return False

    def contract(self) -> Mapping[str, Any]:
        loader = self.loader
        found: dict[str, Any] = {
            "batch_size": getattr(self._batches, "batch_size", None),
            "drop_last": getattr(self._batches, "drop_last", None),
            "num_workers": loader.num_workers,
            "persistent_workers": loader.persistent_workers,
            **sampler_entries(self._sampler),
            **dataset_entries(loader.dataset),
        }
        if loader.batch_size is None:
            found["batch_sampler"] = type_name(self._batches)
        return found

    def begin(self, epoch: int) -> Iterator[Any]:
        self._state = self._state_now()
        self._beginning = beginning.take(self.loader) if self._has_state else None
        self._draws_seed = not self._own.has_living_workers
        return self._pass(0)

    def position(self, progress: Progress) -> Any:
        has_workers = self._own.has_living_workers
        if not progress.is_inside or self._drawn is None:
            between = dict.fromkeys(_SETTINGS)
            return {**between, "state": self._state_now(), "draws_seed": True, "has_workers": has_workers}
        refuse_mixed(self._watch)
        return {
            "state": self._state,
            "beginning": self._beginning,
            "digest": self._drawn.digest,
            "draws_seed": self._draws_seed,
            "has_workers": has_workers,
        }

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        clause = _wrong(position, progress)
        if clause is None and (position["state"] is not None) != self._has_state:
            clause = "the sampler has a state on one side only"
        if clause is not None:
            yield Finding(ComponentMismatch, f"{scope}.position", clause, scope)
        elif progress.is_inside and self._has_state:
            yield from wrong_beginning(position, self.loader, scope)

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        if self._has_state:
            self._sampler.load_state_dict(thaw(position["state"]))
        if not progress.is_inside:
            self._drawn = None
            self._own.set_workers(living=position["has_workers"])
            return None
        self._state, self._beginning = position["state"], position["beginning"]
        self._draws_seed = position["draws_seed"]
        self._own.set_workers(living=not self._draws_seed)
        if self._beginning is not None:
            beginning.put(self._beginning, self.loader)
        rest = self._pass(progress.delivered)
        if self._drawn is None or self._drawn.digest != position["digest"]:
            raise _other_samples()
        return rest

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        if name == "batch_sampler":
            return None
        if not progress.is_inside:
            return NEXT_PASS
        kept = ("num_workers", "persistent_workers", "dataset", "dataset_identity")
        return SAME_SAMPLES if name in kept else None

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def _has_state(self) -> bool:
        return has_state(self._sampler)

    def _state_now(self) -> Any:
        return freeze(self._sampler.state_dict(), "data") if self._has_state else None

    def _pass(self, delivered: int) -> Iterator[Any]:
        """Begin a pass; the sampler draws now, behind the loader, as it does in every pass."""
        drawn = Drawn(self._begin_drawing, delivered)
        iterator = self._own.begin(drawn)
        drawn.start()
        self._drawn = drawn
        return Delivered(iterator, drawn.deliver)

    def _begin_drawing(self) -> Iterator[Any]:
        self._watch = Watch(self.loader)
        return self._watch.over(self._watch.next_of(lambda: iter(self._batches)))


def _other_samples() -> ComponentMismatch:
    return ComponentMismatch(
        "the sampler hands out other samples than those that were delivered", code="component.data.redrawn", where="data",
        hint="its `state_dict` must say all that its order follows from; or use `segue.ExactSampler`",
    )  # fmt: skip


def _wrong(position: Any, progress: Progress) -> str | None:
    if type(position) is not dict or position.keys() != _SETTINGS:
        return "the record holds no position of a sampler"
    if type(position["has_workers"]) is not bool or type(position["draws_seed"]) is not bool:
        return "the record does not say whether workers live on"
    if progress.is_inside and type(position["digest"]) is not str:
        return "the record does not say which samples were delivered"
    return None
