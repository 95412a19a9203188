"""A plain `DataLoader` over an `ExactSampler`: its position is a number of samples of the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from segue._capture.data.identity import dataset_entries, length_of
from segue._capture.data.own_indices import Delivered, OwnIndices
from segue._capture.data.source import Progress
from segue._capture.sampler.exact_sampler import ExactSampler
from segue._capture.staging import type_name
from segue.errors import ComponentMismatch, Finding, UnsupportedState

SAME_SAMPLES = "goes on at the same sample, with what the program has now"
NEXT_PASS = "begins the next pass with what the program has now"
_SETTINGS = {"epoch", "committed", "has_workers"}


class ExactLoader:
    """A plain `DataLoader` over an `ExactSampler`, or over one that hands out the numbers of a sequential sampler.

    Args:
        loader: The loader.
        batches: What its indices come from: the sampler, or torch's `BatchSampler` over it.
        sampler: The sampler.
    """

    kind = "exact_loader"

    def __init__(self, loader: DataLoader[Any], batches: Any, sampler: ExactSampler) -> None:
        self.loader = loader
        self._batches = batches
        self._sampler = sampler
        self._is_batched = isinstance(batches, BatchSampler)
        self._batch_size: int = batches.batch_size if isinstance(batches, BatchSampler) else 1
        self._refuse_other_parts()
        self._own = OwnIndices(loader, batches)
        self._stood: tuple[int, int] | None = None  # where the pass under way has the sampler

    @property
    def keeps_place(self) -> bool:
        return False

    def contract(self) -> Mapping[str, Any]:
        loader, sampler = self.loader, self._sampler
        found: dict[str, Any] = {
            "global_batch_size": self._global_batch_size if self._is_batched else None,
            "drop_last": self._drops_last,
            "num_workers": loader.num_workers,
            "persistent_workers": loader.persistent_workers,
            "sampler": type_name(sampler),
            "sampler.order": sampler.order,
            "sampler.length": sampler.length,
            "sampler.seed": sampler.seed if sampler.shuffle else None,
            **dataset_entries(loader.dataset),
        }
        if loader.batch_size is None:
            found["batch_sampler"] = type_name(self._batches)
        return found

    def begin(self, epoch: int) -> Iterator[Any]:
        self._sampler.place(self._sampler.epoch)
        return self._pass()

    def position(self, progress: Progress) -> Any:
        epoch, committed = self._sampler.epoch, self._sampler.committed
        if progress.is_inside and self._stood != (epoch, committed):
            raise UnsupportedState(
                "the sampler was moved while a pass over it is under way", code="capture.data.moved", where="data",
                expected="epoch {}, {} samples".format(*self._stood or (0, 0)), found=f"epoch {epoch}, {committed} samples",
                hint="call `set_epoch` before `for batch in data`, and leave `commit` and `place` to the data position",
            )  # fmt: skip
        return {
            "epoch": epoch,
            "committed": committed if progress.is_inside else 0,
            "has_workers": self._own.has_living_workers,
        }

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        clause = _wrong(position, progress, contract)
        if clause is not None:
            yield Finding(ComponentMismatch, f"{scope}.position", clause, scope)

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        self._sampler.place(position["epoch"], position["committed"])
        self._own.set_workers(living=position["has_workers"])
        return self._pass() if progress.is_inside else None

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        if name == "batch_sampler":
            return None
        if not progress.is_inside:
            return NEXT_PASS
        if name == "global_batch_size":
            return "goes on behind the samples that were delivered, in batches of the new size"
        kept = ("drop_last", "num_workers", "persistent_workers", "dataset", "dataset_identity")
        return SAME_SAMPLES if name in kept else None

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def _global_batch_size(self) -> int:
        return self._sampler.world_size * self._batch_size

    @property
    def _drops_last(self) -> bool:
        return self._sampler.drop_last or (self._is_batched and bool(self._batches.drop_last))

    def _pass(self) -> Iterator[Any]:
        self._stood = (self._sampler.epoch, self._sampler.committed)
        return Delivered(self._own.begin(iter(self._batches)), self._commit)

    def _commit(self) -> None:
        sampler = self._sampler
        if self._stood == (sampler.epoch, sampler.committed):
            sampler.commit(min(self._global_batch_size, sampler.length - sampler.committed))
            self._stood = (sampler.epoch, sampler.committed)

    def _refuse_other_parts(self) -> None:
        """Refuse what would make a rank's batches other than its part of each global batch."""
        sampler, batch_size, length = self._sampler, self._batch_size, length_of(self.loader.dataset)
        if sampler.batch_size not in (None, batch_size):
            raise _refused("sampler and loader have different batch sizes", "batch_size", batch_size, sampler.batch_size,
                           f"build the sampler with `batch_size={batch_size}`")  # fmt: skip
        if sampler.world_size > 1 and self._drops_last and not sampler.drop_last:
            raise _refused("the loader drops a last batch that the sampler parts among the ranks", "drop_last", True,
                           False, "build the sampler with `drop_last=True` too")  # fmt: skip
        if length is not None and length < sampler.length:
            raise _refused("the sampler was built for more samples than the dataset has", "dataset_length", length,
                           sampler.length, "build the sampler from the loader's dataset")  # fmt: skip


def _refused(what: str, aspect: str, expected: object, found: object, hint: str) -> UnsupportedState:
    return UnsupportedState(
        what, code=f"capture.data.{aspect}", where="data", expected=expected, found=found, hint=hint
    )


def _wrong(position: Any, progress: Progress, contract: Mapping[str, Any]) -> str | None:
    if (
        type(position) is not dict
        or position.keys() != _SETTINGS
        or type(position["has_workers"]) is not bool
    ):
        return "the record holds no position of an ExactSampler"
    epoch, committed, length = position["epoch"], position["committed"], contract.get("sampler.length")
    if any(type(count) is not int or not 0 <= count < 2**63 for count in (epoch, committed, length)):
        return "the record does not say how many samples were delivered"
    if committed > length:
        return "the record says that more samples were delivered than there are"
    if bool(committed) != bool(progress.delivered):
        return "batches and samples that were delivered don't agree"
    return None
