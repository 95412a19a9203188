"""The sections of a record that mirror live objects: modules, optimizers, schedulers, components, streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segue._record.base import BaseRecord
from segue._record.composite import CapturedSubclass, ConvertedTensor
from segue._record.contract import TensorSpec, TrainableContract
from segue._record.parts import parts_of
from segue._record.structure import added, embeddable
from segue._record.tensors import DTYPE_NAMES, CapturedTensor
from segue.errors import InvalidRecord


@embeddable("module")
@dataclass(frozen=True)
class ModuleRecord:
    """A module's parameters, all of its buffers and its modes; or, beside a named base, what isn't in that."""

    tensors: Mapping[str, CapturedTensor | CapturedSubclass | ConvertedTensor | None]
    """By canonical name, one per alias group; `None` for a registered buffer that is `None`."""
    training: Mapping[str, bool]
    """The `training` flag of each submodule by name; the module itself is `""`."""
    contract: TrainableContract
    """Of all tensors of the module, omitted ones too."""
    base: BaseRecord | None = added(since=3)
    """What is left out, and what it is; `None` where nothing is."""
    configuration: Any = added(since=3)
    """What adapters compute with besides tensors (scale, dropout, which is active), a dictionary of trees by submodule;
    compared at restore. `None` where nothing is left out and there is no adapter."""
    extra: Any = added(since=5)
    """What submodules say by `get_extra_state`, a dictionary of trees by submodule; `None` where none says anything."""
    settings: Any = added(since=5)
    """What modules of torch compute with besides tensors (a dropout's probability, an epsilon), by submodule a dictionary
    of `class` and, where there are any, `values`, and `asked`: what the program asked for where the run has other values
    by now, which are set again. Compared at restore. `None` where there are none."""

    def __post_init__(self) -> None:
        """Refuse a record whose tensors aren't what its contract says: restore trusts the contract it has checked."""
        omitted = self.base.omitted if self.base is not None else {}
        odd = (self.tensors.keys() ^ self.contract.tensors.keys()) ^ omitted.keys()
        if odd or self.tensors.keys() & omitted.keys():
            odd = odd or self.tensors.keys() & omitted.keys()
            raise InvalidRecord(
                "tensors and contract have other names", code="record.contract", found=sorted(odd)[:5]
            )
        if self.configuration is not None:
            _refuse_no_dictionary("configuration of a module", self.configuration)
        if self.extra is not None and not _is_by_name(self.extra):
            raise InvalidRecord(
                "extra state of a module that is not told by submodule", code="record.extra", found=self.extra
            )
        if self.settings is not None and not (
            _is_by_name(self.settings) and all(map(_tells_settings, self.settings.values()))
        ):
            raise InvalidRecord(
                "settings of a module that are not told as capture tells them",
                code="record.settings",
                found=self.settings,
            )
        for name, tensor in self.tensors.items():
            expected, found = _layout_of_spec(self.contract.tensors[name]), _layout_of_tensor(tensor)
            if expected != found:
                raise InvalidRecord(
                    "a tensor is not what the contract says", code="record.contract", where=name,
                    expected=expected, found=found,
                )  # fmt: skip


def _is_by_name(tree: Any) -> bool:
    return type(tree) is dict and bool(tree) and all(type(name) is str for name in tree)


def _tells_settings(entry: Any) -> bool:
    """Tell whether an entry is one that restore can compare: it sets values, under names that are attributes."""
    if (
        type(entry) is not dict
        or type(entry.get("class")) is not str
        or not entry.keys() <= {"class", "values", "asked"}
    ):
        return False
    values, asked = entry.get("values", {}), entry.get("asked", {})
    return (
        ("values" not in entry or _is_by_name(values))
        and ("asked" not in entry or _is_by_name(asked))
        and asked.keys() <= values.keys()
        and all(name.isidentifier() and not name.startswith("_") for name in values)
    )


def _layout_of_spec(spec: TensorSpec | None) -> tuple[object, ...] | None:
    return None if spec is None else (spec.dtype, spec.shape, spec.strides, spec.device, spec.parts)


def _layout_of_tensor(
    tensor: CapturedTensor | CapturedSubclass | ConvertedTensor | None,
) -> tuple[object, ...] | None:
    if tensor is None:
        return None
    return DTYPE_NAMES.get(tensor.dtype), tensor.shape, tensor.strides, tensor.device, parts_of(tensor)


@dataclass(frozen=True)
class GroupRecord:
    """One `param_group`: its members by name, in order, and its options."""

    parameters: tuple[str, ...]
    options: Any
    """A dictionary of trees: every key but `params`, the caller's own keys included."""
    configured: Any
    """The options as they were when the optimizer was first bound to a `Training`: what the program asked for."""

    def __post_init__(self) -> None:
        """Refuse options that are no dictionary: they could be neither compared nor set."""
        _refuse_no_dictionary("options of a group", self.options)
        _refuse_no_dictionary("options of a group", self.configured)


@embeddable("optimizer")
@dataclass(frozen=True)
class OptimizerRecord:
    """A torch optimizer: groups by name and state by parameter name and slot."""

    class_name: str
    groups: tuple[GroupRecord, ...]
    state: Mapping[str, Any]
    """State by parameter name, in the order in which it came to be; a parameter that never had state is absent."""
    defaults: Any
    """A dictionary of trees: the options that a new group would get."""
    shared_options: tuple[tuple[str, ...], ...]
    """Places of options that are one tensor, such as `0/lr` and `defaults/lr`, two or more each."""
    attributes: Any = added(since=2)
    """A dictionary of trees: what the class keeps in attributes and was configured with, such as a block size.
    Compared at restore; `None` for the classes of torch, which keep everything in options."""

    @property
    def members(self) -> list[tuple[str, ...]]:
        """The members of each group by name, in order."""
        return [group.parameters for group in self.groups]

    def __post_init__(self) -> None:
        """Refuse attributes that are no dictionary by name: they could not be compared, and would count as none."""
        _refuse_no_dictionary("options of an optimizer", self.defaults)
        for name, slots in self.state.items():
            _refuse_no_dictionary(f"state of {name}", slots)
        attributes = self.attributes
        if attributes is not None and not (
            type(attributes) is dict and all(type(name) is str for name in attributes)
        ):
            raise InvalidRecord("no attributes of an optimizer", code="record.attributes", found=attributes)


def _refuse_no_dictionary(what: str, tree: Any) -> None:
    if type(tree) is not dict:
        raise InvalidRecord("not a dictionary", code="record.field", where=what, found=type(tree).__name__)


@embeddable("scheduler")
@dataclass(frozen=True)
class SchedulerRecord:
    """A learning-rate scheduler: where it stands, and how it was configured."""

    class_name: str
    optimizer: str
    """The name of the optimizer that it drives."""
    configuration: Any
    """Constructor options and fingerprints of callables; compared at restore."""
    position: Any
    """What moves; restored."""
    children: tuple[SchedulerRecord, ...]
    """Nested schedulers, as in `SequentialLR`."""
    outstanding_steps: int
    """Optimizer steps since this scheduler last moved."""
    usual_steps: int | None
    """Optimizer steps between its last two moves; `None` before the second move."""


@embeddable("component")
@dataclass(frozen=True)
class ComponentRecord:
    """Any other object with state that was registered by name."""

    kind: str
    """`module`, `state_dict`, or `component` for an object with `capture`, `check`, `restore`."""
    class_name: str
    module: ModuleRecord | None
    """The state of a component that is a module."""
    tree: Any
    """The state of any other; of a module, what it shares with other modules, or `None`."""
    configured: Any = added(since=4)
    """Of a gradient scaler, the factors that the program asked for where the run has others by now."""

    def __post_init__(self) -> None:
        """Refuse a module whose sharing is not told as capture tells it: check and rename read it."""
        if self.module is not None and self.tree is not None and not _tells_shares(self.tree):
            raise InvalidRecord("what a module shares is not told", code="record.shares", found=self.tree)


@dataclass(frozen=True)
class OpaqueOptimizerRecord:
    """An optimizer that is not torch's: what it saves of itself, and what it says that it steps."""

    state: ComponentRecord
    groups: tuple[tuple[str, ...], ...] | None
    """The members of its groups by name, in order; `None` where it doesn't say."""
    attributes: Any = added(since=4)
    """What it keeps in attributes, dictionaries of trees: `configured`, compared at restore; `moved` since, which its own
    loading has to put back; `kept`, which are set; and `unseen`, with their classes. `None` where it keeps nothing."""

    @property
    def class_name(self) -> str:
        """The full name of its class."""
        return self.state.class_name

    def __post_init__(self) -> None:
        """Refuse a module: it is restored otherwise, and is no optimizer."""
        if self.state.module is not None:
            raise InvalidRecord(
                "an optimizer that is a module", code="record.field", found=self.state.class_name
            )
        if self.attributes is not None and not _tells_attributes(self.attributes):
            raise InvalidRecord(
                "no attributes of an optimizer", code="record.attributes", found=self.attributes
            )


def _tells_attributes(tree: Any) -> bool:
    return (
        type(tree) is dict
        and tree.keys() <= {"configured", "moved", "kept", "unseen"}
        and all(type(part) is dict and all(type(name) is str for name in part) for part in tree.values())
    )


def _tells_shares(tree: Any) -> bool:
    return (
        type(tree) is dict
        and tree.keys() == {"shares"}
        and type(tree["shares"]) is dict
        and all(type(name) is str and _is_share(share) for name, share in tree["shares"].items())
    )


def _is_share(share: Any) -> bool:
    return (
        type(share) is dict
        and share.keys() == {"with", "offset", "same"}
        and type(share["with"]) is tuple
        and len(share["with"]) == 2
        and all(type(part) is str for part in share["with"])
    )
