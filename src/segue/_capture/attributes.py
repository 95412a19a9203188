"""What optimizers of other libraries keep in attributes of their own: a table of those that the general rule would refuse.

The rule (`hidden`) goes by what moves and what can be looked into. Here are attributes that it would take for state,
and that are none, and such as are state which their class does not save.

Each attribute of an admitted class of torch optimizers is one of three. *Configuration* decides how the class steps: it
is recorded, and compared at restore. *Derived* ones follow from that, or from the process. A few can hold state that is
kept nowhere else; those are refused, unless they hold none. To an attribute that the table doesn't know the rule
applies: also that of a class which a program derives from an admitted one.

bitsandbytes has its own `state_dict` and `load_state_dict`, which cast state and copy deeply; they are not called.
Its lookup tables (`qmap1`, `qmap2`) are one tensor for all parameters, and one with the optimizer's `name2qmap`. It
only ever reads them, so they are stored with each parameter, and put back as the optimizer's own (ADR 0008).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._capture.state_of import all_names
from segue._record.subclass import is_imported_class
from segue.errors import UnsupportedState

_Read = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class _Admitted:
    """A base class of optimizers with attributes of its own."""

    class_name: str
    read: _Read
    """Returns the configuration, by what it is called in records."""
    attributes: frozenset[str]
    """All attributes that it sets: those that `read` reads, and derived ones."""
    refuse: Callable[[Any, str], None] | None = None
    """Raises where an attribute holds what would be lost."""
    tables: frozenset[str] = frozenset()
    """Slots of state that only ever hold the optimizer's lookup tables."""


def _read_torchao(optimizer: Any) -> dict[str, Any]:
    return {name: getattr(optimizer, name) for name in ("block_size", "bf16_stochastic_round", "is_adamw")}


def _read_bitsandbytes(optimizer: Any) -> dict[str, Any]:
    # `args` may be a namespace of the program's own, with anything in it; these are what the step looks at.
    names = ("optim_bits", "min_8bit_size", "max_unorm", "skip_zeros")
    return {
        "optimizer_name": optimizer.optimizer_name,
        **{name: getattr(optimizer.args, name) for name in names},
        # With another release's tables, a parameter that first steps after the restore would differ.
        "name2qmap": dict(optimizer.name2qmap),
    }


def _refuse_bitsandbytes(optimizer: Any, scope: str) -> None:
    if optimizer.is_paged:
        raise UnsupportedState(
            "a paged optimizer is not supported: its state is in memory that torch does not know", where=scope,
            found=type_name(optimizer), hint="use the same optimizer without `Paged`",
        )  # fmt: skip
    manager = optimizer.mng
    if manager.pid2config or manager.index2config or manager.module_weight_config_triple:
        raise UnsupportedState(
            "overrides of the options of single parameters are not supported: they are kept by the identity of live "
            "objects", where=scope, found="GlobalOptimManager with overrides",
            hint="use parameter groups, or an optimizer of their own",
        )  # fmt: skip


def _read_fp32_master(optimizer: Any) -> dict[str, Any]:
    # Its inner optimizer has no state between steps; the options of that are the groups' own.
    return {"inner": type_name(optimizer._inner), "max_norm": optimizer._max_norm}


_ADMITTED = (
    _Admitted(
        "segue.optim.FP32Master", _read_fp32_master, frozenset({"_inner", "_inner_options", "_max_norm"})
    ),
    _Admitted(
        "torchao.optim.adam._AdamBase",
        _read_torchao,
        frozenset({"block_size", "bf16_stochastic_round", "is_adamw"}),
    ),
    _Admitted(
        "bitsandbytes.optim.optimizer.Optimizer8bit",
        _read_bitsandbytes,
        # `initialized` is False in a new process: the next step then looks for overrides, of which there are none,
        # and moves state to its parameter's device, where it is (bitsandbytes 0.50). `page_mng` and `mng` are one
        # for the process, `non_castable_tensor_keys` is a constant.
        frozenset({
            "args", "initialized", "is_paged", "mng", "name2qmap", "non_castable_tensor_keys", "optimizer_name",
            "page_mng",
        }),
        _refuse_bitsandbytes,
        frozenset({"qmap1", "qmap2"}),
    ),
)  # fmt: skip


def _admitted(optimizer: Optimizer) -> tuple[_Admitted, type] | None:
    """Return the table's entry for an optimizer, and the class of its that has this name."""
    for cls in type(optimizer).__mro__:
        for entry in _ADMITTED:
            if is_imported_class(cls, entry.class_name):
                return entry, cls
    return None


# Two marks of fused optimizers, which follow from the option `fused` and from whether the first step has looked at
# devices; `step`, which schedulers wrap, and the mark that they leave.
MARKS = frozenset({"step", "_opt_called", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"})
# Views of the groups that LBFGS keeps; nothing that isn't derived.
_DERIVED: dict[type, frozenset[str]] = {torch.optim.LBFGS: frozenset({"_params", "_numel_cache"})}


@functools.cache
def base_attributes() -> frozenset[str]:
    """Return the attributes that every torch optimizer has, and the marks.

    Not at import: making the first optimizer of a process imports torch._dynamo, which takes a second (torch 2.13).
    """
    return frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))) | MARKS


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Return the attributes of an optimizer that neither torch gives it, nor a class that is known."""
    derived = _DERIVED.get(type(optimizer), frozenset())
    ours = base_attributes() | derived | known_attributes(optimizer)
    return {name: getattr(optimizer, name) for name in all_names(optimizer) if name not in ours}


def known_attributes(optimizer: Optimizer) -> frozenset[str]:
    """Return the attributes of its own that an optimizer may have; none for a class that the table doesn't know."""
    found = _admitted(optimizer)
    return frozenset() if found is None else found[0].attributes


def saves_as_known(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's `state_dict` is torch's, or that of an admitted class, and nothing is hooked to it.

    Only then is what it saves known to be its state and its options. `load_state_dict` may do anything with them.
    """
    found = _admitted(optimizer)
    base: Any = Optimizer if found is None else found[1]
    cls, own = type(optimizer), vars(optimizer)
    return (
        cls.state_dict is base.state_dict
        and cls.load_state_dict is base.load_state_dict
        and not any(own.get(name) for name in _STATE_HOOKS)
        and not own.keys() & {"state_dict", "load_state_dict"}
        and not _HOOKED - own.keys()
    )


# What torch runs around its two methods, which are not called here (torch 2.13).
_STATE_HOOKS = (
    "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
)  # fmt: skip
# What `Optimizer.__init__` makes. A subclass that is without only looks like one: it passes on to another.
_HOOKED = frozenset({"param_groups", "state", "defaults"})


def refuse_hidden_state(optimizer: Optimizer, scope: str) -> None:
    """Raise `UnsupportedState` if an attribute of an admitted class holds state that would be lost."""
    found = _admitted(optimizer)
    if found is not None and found[0].refuse is not None:
        found[0].refuse(optimizer, scope)


def known_configuration(optimizer: Optimizer, scope: str) -> dict[str, Any] | None:
    """Copy the configuration that an admitted class keeps in attributes; `None` for any other.

    Raises:
        UnsupportedState: If one can't be kept, or is missing.
    """
    found = _admitted(optimizer)
    if found is None:
        return None
    try:
        values = found[0].read(optimizer)
    except AttributeError as error:
        raise UnsupportedState(
            "an optimizer without the attributes of its class: another release of the library?", where=scope,
            found=str(error),
        ) from error  # fmt: skip
    return {name: freeze(value, f"{scope} {name}") for name, value in values.items()}


@dataclass(frozen=True)
class Unsaved:
    """What a class that is asked for its state whole keeps beside it."""

    kept: frozenset[str] = frozenset()
    """Attributes that are state, of plain values: kept with what it saves, and set after it was loaded."""
    passing: frozenset[str] = frozenset()
    """Attributes that say nothing about a run at a boundary, or that belong to the process."""


_UNSAVED: dict[str, Unsaved] = {
    # Whether the weights are those to train or those to evaluate: its dictionary is that of the optimizer in it.
    "schedulefree.wrap_schedulefree.ScheduleFreeWrapper": Unsaved(kept=frozenset({"train_mode"})),
    "schedulefree.wrap_schedulefree_reference.ScheduleFreeWrapperReference": Unsaved(
        kept=frozenset({"train_mode"})
    ),
    # Whether the last step was skipped. The two states are those of the process, for all objects of accelerate.
    "accelerate.optimizer.AcceleratedOptimizer": Unsaved(
        kept=frozenset({"_is_overflow"}),
        passing=frozenset({
            "accelerator_state", "gradient_state", "_accelerate_step_called", "_optimizer_original_step_method",
            "_optimizer_patched_step_method",
        }),
    ),
}  # fmt: skip


def unsaved_of(value: object) -> Unsaved:
    """Return what is known of an object's class, or of one that it is derived from."""
    for cls in type(value).__mro__:
        for name, unsaved in _UNSAVED.items():
            if is_imported_class(cls, name):
                return unsaved
    return Unsaved()


def table_slots(optimizer: Optimizer) -> frozenset[str]:
    """Return the slots of state that only ever hold lookup tables, which nothing writes to."""
    found = _admitted(optimizer)
    return frozenset() if found is None else found[0].tables


def own_tables(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return an optimizer's own lookup tables, not copies."""
    return list(vars(optimizer)["name2qmap"].values()) if table_slots(optimizer) else []
