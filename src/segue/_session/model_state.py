"""What of a model is captured: all of it, its trainable part beside a named base, or what an object of the caller's says.

Each is a setting that the caller writes down, and becomes a `BoundModelState` over a live model: it captures, checks and
plans the writes, with the same promises as everything else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

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
from segue._capture.component import Component, capture_object
from segue._capture.module import capture_module, check_module, contract_of, modes_of
from segue._capture.naming import NamedTensor, named_tensors
from segue._capture.staging import is_of_class, type_name
from segue._record.base import BaseIdentity, BaseRecord
from segue._record.contract import TrainableContract
from segue._record.sections import ComponentRecord, ModuleRecord
from segue._record.training import TrainingRecord
from segue._record.tree import thaw
from segue.errors import (
    ABSENT,
    BaseMismatch,
    BaseWarning,
    ComponentMismatch,
    ContractMismatch,
    Finding,
    UnsupportedState,
)

NameFilter = str | Collection[str] | Callable[[str], bool]
"""Names: patterns as of a shell (`*.bias`), one or several, or a function that tells."""


@dataclass(frozen=True)
class FullModel:
    """Capture the whole model: every parameter and every buffer. The default of `Training(model_state=...)`."""


@dataclass(frozen=True)
class TrainableOnly:
    """Capture what is trained, and name the frozen base that it needs: for adapters, and for towers that stand still.

    Left out is what is frozen and still has the bytes of the base. Kept is everything else: trainable parameters; what
    was trained and is frozen since; adapters of peft, active or not; buffers that training changes, such as the
    statistics of a BatchNorm in a frozen base; what lies in one memory with something that is kept.

    Args:
        base: What the base is: `segue.base_identity(model)`, which compares every byte of it at restore, or a string of
            your own (`"llama-3-8b@1f2e"`), which is compared as text and vouches for the rest.
        trainable: Names of the parameters that are trained. They are kept, frozen or not, and one of others that
            requires grad is refused at capture. By default whatever requires grad.
        omit: Names of tensors that may be left out, such as `"vision_tower.*"`; everything else is kept, frozen or not.
            By default all.
        keep: Names of tensors that are kept in any case.

    Raises:
        UnsupportedState: If `base` is neither, or an empty string, or a filter is none. By `Training`: if a pattern fits no
            tensor of the model.

    Guarantees:
        The base is never copied, moved, written to or held. A record is refused (`BaseMismatch`) where a tensor that it
        left out has other bytes than here, and where an adapter would compute with another rank, scale or dropout, or
        another one is active.

    Cost:
        One read of the base in each process, for its identity.
    """

    base: BaseIdentity | str
    trainable: NameFilter | None = None
    omit: NameFilter | None = None
    keep: NameFilter | None = None

    def __post_init__(self) -> None:
        """Refuse what names no base, and filters that are none."""
        if not isinstance(self.base, BaseIdentity | str) or (
            isinstance(self.base, str) and not self.base.strip()
        ):
            raise UnsupportedState(
                "the omitted base must be named", code="model_state.base", where="TrainableOnly(base=...)",
                expected="segue.base_identity(model), or a string that is not empty", found=self.base,
            )  # fmt: skip
        for name in ("trainable", "omit", "keep"):
            _refuse_no_filter(name, getattr(self, name))


def _refuse_no_filter(name: str, value: Any) -> None:
    is_filter = value is None or callable(value) or isinstance(value, str)
    if not is_filter and not (isinstance(value, Collection) and all(isinstance(item, str) for item in value)):
        raise UnsupportedState(
            "a filter is patterns of names, or a function", code="model_state.filter", where=f"TrainableOnly({name}=...)",
            found=value,
        )  # fmt: skip


def _refuse_idle_filters(setting: TrainableOnly, tensors: Mapping[str, NamedTensor]) -> None:
    """Refuse a pattern that fits no name: it was meant to, and what it says would silently be otherwise."""
    for option in ("trainable", "omit", "keep"):
        names: NameFilter | None = getattr(setting, option)
        each = [names] if names is None or isinstance(names, str) or callable(names) else list(names)
        for one in each:
            if one is not None and not any(matches(one, item, False) for item in tensors.values()):
                raise UnsupportedState(
                    "no tensor of the model has such a name", code="model_state.filter", where=f"TrainableOnly({option}=...)",
                    found=one, hint=f'a pattern is of whole names, such as "vision_tower.*"; these are {_some(sorted(tensors))}',
                )  # fmt: skip


def matches(names: NameFilter | None, item: NamedTensor, default: bool) -> bool:
    """Tell whether any name of a tensor is meant; `default` where there is no filter."""
    if names is None:
        return default
    if callable(names):
        return any(names(alias) for alias in item.aliases)
    patterns = [names] if isinstance(names, str) else names
    return any(fnmatchcase(alias, pattern) for alias in item.aliases for pattern in patterns)


ModelState = FullModel | TrainableOnly | Component
MODEL_SCOPE = "model_state"
"""What the caller's object is called in messages."""


class BoundModelState(Protocol):
    """The model of one training, as it is captured."""

    @property
    def kind(self) -> str:
        """The kind of its records."""
        ...

    def objects(self) -> dict[str, Any]:
        """Return the object that restores the model, if it is the caller's, by its scope."""
        ...

    def capture(self) -> tuple[ModuleRecord, Any]:
        """Return the model's section, and what the caller's object captured, or `None`."""
        ...

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        """Yield what keeps the record's model from fitting."""
        ...


def bound(model_state: Any, model: nn.Module) -> BoundModelState:
    """Bind a setting to a model.

    Raises:
        UnsupportedState: If it is none, or names a base that this model does not have.
    """
    if model_state is None or isinstance(model_state, FullModel):
        return WholeModel(model)
    if isinstance(model_state, TrainableOnly):
        return PartialModel(model, model_state)
    if isinstance(model_state, Component) and not isinstance(model_state, type):
        return CallersModel(model, model_state)
    raise UnsupportedState(
        "what of the model is captured is `FullModel()`, `TrainableOnly(base=...)`, or an object with `capture`, `check` "
        "and `restore`", code="model_state.kind", where="model_state", found=type_name(model_state),
    )  # fmt: skip


@dataclass(frozen=True)
class WholeModel:
    """Everything registered."""

    model: nn.Module
    kind = "full"

    def objects(self) -> dict[str, Any]:
        return {}

    def capture(self) -> tuple[ModuleRecord, Any]:
        return capture_module(self.model, "model"), None

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        yield from module_findings(record, self.model, None)


_SHOWN = {
    None: "FullModel()",
    "digest": "TrainableOnly(base=...)",
    "declared": "TrainableOnly(base=...)",
    "model_state": "an object of the caller's",
}


def kind_finding(record: TrainingRecord, program: str) -> Finding | None:
    """Return that a record keeps another part of the model than the program would, or `None`.

    Args:
        record: The record.
        program: What the program captures, as people write it.
    """
    base = record.model.base
    recorded = _SHOWN[None if base is None else base.source]
    if recorded == program:
        return None
    # Between all and part nothing is lost either way, but the next checkpoint is of another kind. A base that nobody
    # has read can't be told from the program's, and what segue captured means nothing to an object of the caller's.
    can = (base is None or base.source == "digest") and program != _SHOWN["model_state"]
    return Finding(
        ContractMismatch, "model.kind", "another part of the model is captured", MODEL_SCOPE, recorded, program,
        "capture the same part of the model as before", admissible=can,
    )  # fmt: skip


def module_findings(
    record: TrainingRecord, model: nn.Module, base: BaseIdentity | str | None
) -> Iterator[Finding]:
    """Yield what keeps a model from fitting what segue captured of one."""
    difference = kind_finding(record, _SHOWN[None if base is None else "digest"])
    if difference is not None:
        yield difference
        if not difference.admissible:
            return
    yield from base_findings(record.model, model, base)
    yield from check_module(record.model, model, "model")


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
            self._tell_kept(unknown, "are not in the identity of the base", stacklevel=5)
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
                "the base was rewritten since its identity was taken", code="model.base", where=_some(rewritten),
                expected=f"base {base.digest[:12]}", found="other bytes",
                hint="take `base_identity(model)` last: after the base is loaded and cast, and after the adapter is made, since "
                "some rewrite the base then (PiSSA, OLoRA, CorDA)",
            )  # fmt: skip

    def _tell_kept(self, items: Collection[NamedTensor], why: str, stacklevel: int) -> None:
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
                f"{_some(list(sizes))}. The identity is taken last, when all is loaded, cast and frozen; an adapter that is "
                "merged and unmerged rounds the base, so merge a copy.",
                BaseWarning,
                stacklevel=stacklevel,
            )

    def _is_unchanged(self, name: str, item: NamedTensor, place: BasePlace) -> bool:
        assert item.tensor is not None, "candidates are tensors"
        base = self._setting.base
        if isinstance(base, BaseIdentity):
            known = base.tensors.get(place.name)
            return known is not None and known == tensor_digest(item.tensor, f"model {name}")
        mark = mark_of(item.tensor)
        return mark is not None and name in self._marks and self._marks[name] == mark

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
        self._tell_kept(changed, "are no longer the base's", stacklevel=6)
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
                where=_some(outside), found="requires_grad", hint="freeze it, or name it in `TrainableOnly(trainable=...)`",
            )  # fmt: skip

    def capture(self) -> tuple[ModuleRecord, Any]:
        return capture_module(self.model, "model", self._base), None

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        yield from module_findings(record, self.model, self._setting.base)


class CallersModel:
    """What an object of the caller's captures; segue keeps the contract of the trainable parameters beside it."""

    kind = "model_state"

    def __init__(self, model: nn.Module, archive: Component) -> None:
        self.model = model
        self._archive = archive

    def objects(self) -> dict[str, Any]:
        return {MODEL_SCOPE: self._archive}

    def capture(self) -> tuple[ModuleRecord, Any]:
        contract = contract_of(self.model, "model").trainable_part()
        base = BaseRecord("model_state", type_name(self._archive), dict.fromkeys(contract.tensors))
        captured = capture_object(self._archive, MODEL_SCOPE)
        modes = dict(modes_of(self.model, "model"))
        return ModuleRecord({}, modes, contract, base), captured.tree

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        difference = kind_finding(record, _SHOWN["model_state"])
        if difference is not None:
            yield difference
            return
        base = record.model.base
        assert base is not None, "what an object of the caller's captured names it"
        if not is_of_class(self._archive, base.identity):
            yield Finding(
                ComponentMismatch, f"{MODEL_SCOPE}.class", "another class captures the model", MODEL_SCOPE,
                base.identity, type_name(self._archive),
            )  # fmt: skip
            return
        found = contract_of(self.model, "model").trainable_part()
        yield from record.model.contract.differences(found, "model")
        for clause in self._archive.check(thaw(record.model_state)) or ():
            yield Finding(ComponentMismatch, f"{MODEL_SCOPE}.check", clause, MODEL_SCOPE)


def callers_record(record: TrainingRecord) -> dict[str, ComponentRecord]:
    """Return what the caller's object captured of the model, as one of the objects that are asked to restore."""
    base = record.model.base
    if base is None or base.source != "model_state":
        return {}
    return {MODEL_SCOPE: ComponentRecord("component", base.identity, None, record.model_state)}


def _beside_kept(
    omitted: Collection[str], tensors: Mapping[str, NamedTensor], contract: TrainableContract
) -> set[str]:
    """Return the omitted tensors that share memory with one that isn't: as it moves, so do they."""
    names = {alias: name for name, item in tensors.items() for alias in item.aliases}
    found: set[str] = set()
    for sharing in contract.sharing:
        # Members are aliases, or parts of tensors: `alias.part`.
        members = {names[member] if member in names else _whole(member, names) for member in sharing.members}
        if not members <= set(omitted):
            found |= members & set(omitted)
    return found


def _whole(part: str, names: Mapping[str, str]) -> str:
    while part not in names:
        part = part.rpartition(".")[0]
    return names[part]


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def base_findings(
    record: ModuleRecord, model: nn.Module, base: BaseIdentity | str | None
) -> Iterator[Finding]:
    """Yield that a model's frozen tensors are not those that the record left out."""
    recorded = record.base
    if recorded is None or recorded.source == "model_state":
        return
    named = base if isinstance(base, str) else None
    if recorded.source == "declared" or named is not None:
        if recorded.identity != named:
            yield Finding(
                BaseMismatch, "model.base", "another base", "model", _named(recorded), _said(base),
                "load the base that the checkpoint names, and name it as before",
            )  # fmt: skip
        return
    tensors = named_tensors(model, "model")
    live = (tensors[name].tensor for name in recorded.omitted if name in tensors)
    forget_if_untold(tensor for tensor in live if tensor is not None)
    differing = [
        name
        for name, digest in recorded.omitted.items()
        if name in tensors and not _has_digest(tensors[name], digest, f"model {name}")
    ]
    if differing:
        yield Finding(
            BaseMismatch, "model.base", "another base: frozen tensors that the record left out have other bytes",
            f"model: {len(differing)} of {len(recorded.omitted)} tensors: {_some(differing)}", _named(recorded), _said(base),
            "load the base that the adapter was trained on; if the adapter rewrites it as it is made (PiSSA), make it as "
            "before, with the same seed",
        )  # fmt: skip


def _has_digest(item: NamedTensor, digest: str | None, where: str) -> bool:
    return item.tensor is not None and tensor_digest(item.tensor, where) == digest


def _named(base: BaseRecord) -> str:
    return f"base {base.shown}" if base.source == "digest" else repr(base.identity)


def _said(base: BaseIdentity | str | None) -> Any:
    if base is None:
        return ABSENT
    return f"base {base.digest[:12]}" if isinstance(base, BaseIdentity) else repr(base)
