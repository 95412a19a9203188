"""What is trained of a model, beside a base that is named and not kept."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.adapters import refuse_merged
from segue._capture.base import (
    BasePlace,
    Mark,
    base_places_of,
    forget_if_untold,
    is_base,
    mark_of,
    tensor_digest,
)
from segue._capture.module import capture_module
from segue._capture.naming import NamedTensor, named_tensors
from segue._capture.uncovered_frames import stacklevel
from segue._record.base import BaseIdentity, BaseRecord
from segue._record.contract import TrainableContract
from segue._record.sections import ModuleRecord
from segue._record.training import TrainingRecord
from segue._session.model_checks import module_findings
from segue._session.model_state import NameFilter, TrainableOnly, matches
from segue.errors import BaseMismatch, BaseWarning, Finding, UnsupportedState, some


class PartialModel:
    """What is trained, beside a base."""

    kind = "model_state"

    def __init__(self, model: nn.Module, setting: TrainableOnly) -> None:
        self.model = model
        self._setting = setting
        # With a base of the caller's naming nobody has read it: what it was when it was bound is what it is.
        self._marks: dict[str, Mark | None] = {}
        tensors = named_tensors(model, "model")
        _refuse_idle_filters(setting, tensors)
        candidates = list(self._candidates(tensors))
        self._bound = {name for name, *_ in candidates}
        self._told: set[str] = set()
        if isinstance(setting.base, BaseIdentity):
            self._refuse_rewritten(setting.base, candidates)
            unknown = [item for _, item, place in candidates if place.name not in setting.base.tensors]
            self._tell_kept(unknown, "are not in the identity of the base")
        else:
            self._marks = {
                name: mark_of(item.tensor) for name, item, _ in candidates if item.tensor is not None
            }

    def objects(self) -> dict[str, Any]:
        return {}

    def _candidates(self, tensors: Mapping[str, NamedTensor]) -> Iterator[tuple[str, NamedTensor, BasePlace]]:
        """Yield the tensors that may be left out if they are still the base's."""
        places, setting = base_places_of(self.model, "model", tensors), self._setting
        for name, item in tensors.items():
            kept = matches(setting.keep, item, False) or matches(setting.trainable, item, False)
            if is_base(item, places[name]) and not kept and matches(setting.omit, item, True):
                yield name, item, places[name]

    def _refuse_rewritten(
        self, base: BaseIdentity, candidates: list[tuple[str, NamedTensor, BasePlace]]
    ) -> None:
        forget_if_untold(item.tensor for _, item, _ in candidates if item.tensor is not None)
        rewritten = [
            name
            for name, item, place in candidates
            if item.kind == "parameter"
            and place.name in base.tensors
            and not self._is_unchanged(name, item, place)
        ]
        if rewritten:
            raise BaseMismatch(
                "the base was rewritten since its identity was taken", code="model.base", where=some(rewritten),
                expected=f"base {base.digest[:12]}", found="other bytes",
                hint="take `base_identity(model)` last: after the base is loaded and cast, and after the adapter is made, since "
                "some rewrite the base then (PiSSA, OLoRA, CorDA)",
            )  # fmt: skip

    def _tell_kept(self, items: Collection[NamedTensor], why: str) -> None:
        """Warn, once of each, of frozen parameters that are stored after all: that may be gigabytes in each checkpoint."""
        sizes = {
            item.name: item.tensor.nbytes
            for item in items
            if item.tensor is not None and item.kind == "parameter" and item.name not in self._told
        }
        self._told |= sizes.keys()
        if sizes:
            warnings.warn(
                f"frozen parameters {why}, so {sum(sizes.values()):,} bytes more are stored with each checkpoint: "
                f"{some(list(sizes))}. The identity is taken last, when all is loaded, cast and frozen; an adapter that is "
                "merged and unmerged rounds the base, so merge a copy.",
                BaseWarning,
                stacklevel=stacklevel(),
            )

    def _is_unchanged(self, name: str, item: NamedTensor, place: BasePlace) -> bool:
        assert item.tensor is not None, "candidates are tensors"
        base = self._setting.base
        if isinstance(base, BaseIdentity):
            known = base.tensors.get(place.name)
            return known is not None and known == tensor_digest(item.tensor, f"model {name}")
        return self._is_as_named(name, item.tensor)

    def _base(self, tensors: Mapping[str, NamedTensor], contract: TrainableContract) -> BaseRecord:
        """Tell what is left out at this moment.

        Raises:
            UnsupportedState: If a parameter requires grad that the setting doesn't say is trained, or adapters are merged
                into the base.
        """
        refuse_merged(self.model, "model")
        self._refuse_others_trained(tensors)
        base = self._setting.base
        candidates = list(self._candidates(tensors))
        self._forget_if_untold(candidates)
        omitted: dict[str, str | None] = {
            name: base.tensors[place.name] if isinstance(base, BaseIdentity) else None
            for name, item, place in candidates
            if self._is_unchanged(name, item, place)
        }
        changed = [item for name, item, _ in candidates if name in self._bound and name not in omitted]
        self._tell_kept(changed, "are no longer the base's")
        for name in _beside_kept(omitted, tensors, contract):
            del omitted[name]
        source, identity = ("digest", base.digest) if isinstance(base, BaseIdentity) else ("declared", base)
        return BaseRecord(source, identity, dict(sorted(omitted.items())))

    def _forget_if_untold(self, candidates: list[tuple[str, NamedTensor, BasePlace]]) -> None:
        live = {name: item.tensor for name, item, _ in candidates if item.tensor is not None}
        forget_if_untold(live.values())
        marks = {name: mark for name, mark in self._marks.items() if name in live and mark is not None}
        # What nobody has read can't be read again: all of it is kept from now on.
        if any(mark.is_untold(mark_of(live[name])) for name, mark in marks.items()):
            self._marks.clear()

    def _refuse_others_trained(self, tensors: Mapping[str, NamedTensor]) -> None:
        outside = [
            name
            for name, item in tensors.items()
            if item.tensor is not None
            and item.tensor.requires_grad
            and not matches(self._setting.trainable, item, True)
        ]
        if outside:
            raise UnsupportedState(
                "a parameter requires grad that is not among the trained ones", code="capture.outside_trainable",
                where=some(outside), found="requires_grad", hint="freeze it, or name it in `TrainableOnly(trainable=...)`",
            )  # fmt: skip

    def capture(self) -> tuple[ModuleRecord, Any]:
        return capture_module(self.model, "model", self._base), None

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        yield from module_findings(record, self.model, self._setting.base)
        yield from self._moved_findings(record.model.base)

    def _moved_findings(self, recorded: BaseRecord | None) -> Iterator[Finding]:
        """Yield that a base which only has a name was written since it was named: the record has not what it was."""
        if recorded is None or recorded.source != "declared" or recorded.identity != self._setting.base:
            return
        tensors = named_tensors(self.model, "model")
        items = [(name, tensors[name]) for name in recorded.omitted if name in tensors]
        live = [(name, item.tensor) for name, item in items if item.tensor is not None]
        moved = [name for name, tensor in live if not self._is_as_named(name, tensor)]
        if moved:
            yield Finding(
                BaseMismatch, "model.base", "the base was written since it was named, and the record left out what it was",
                f"model: {len(moved)} of {len(recorded.omitted)} tensors: {some(moved)}", repr(recorded.identity),
                "other bytes", "load the base again, and make the training anew",
            )  # fmt: skip

    def _is_as_named(self, name: str, tensor: torch.Tensor) -> bool:
        mark = mark_of(tensor)
        return mark is not None and self._marks.get(name) == mark


def _refuse_idle_filters(setting: TrainableOnly, tensors: Mapping[str, NamedTensor]) -> None:
    """Refuse a pattern that fits no name: it was meant to, and what it says would silently be otherwise."""
    for option in ("trainable", "omit", "keep"):
        names: NameFilter | None = getattr(setting, option)
        each = [names] if names is None or isinstance(names, str) or callable(names) else list(names)
        for one in each:
            if one is not None and not any(matches(one, item, False) for item in tensors.values()):
                raise UnsupportedState(
                    "no tensor of the model has such a name", code="model_state.filter", where=f"TrainableOnly({option}=...)",
                    found=one, hint=f'a pattern is of whole names, such as "vision_tower.*"; these are {some(sorted(tensors))}',
                )  # fmt: skip


def _beside_kept(
    omitted: Collection[str], tensors: Mapping[str, NamedTensor], contract: TrainableContract
) -> set[str]:
    """Return the omitted tensors that share memory with one that isn't: as it moves, so do they."""
    names = {alias: name for name, item in tensors.items() for alias in item.aliases}
    found: set[str] = set()
    for sharing in contract.sharing:
        # Members are aliases, or parts of tensors: `alias.part`.
        members = {_whole(member, names) for member in sharing.members}
        if not members <= set(omitted):
            found |= members & set(omitted)
    return found


def _whole(part: str, names: Mapping[str, str]) -> str:
    while part not in names:
        part = part.rpartition(".")[0]
    return names[part]
