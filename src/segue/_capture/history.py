"""What torch's optimizers keep for a parameter, and which shapes that can have.

Wish: a history never goes to a parameter that it is not of.

`load_state_dict` takes any (torch 2.13): the moments of a matrix go to a vector without a word, and where torch can
broadcast them the next step does. State goes by name here, so only a record that was made or changed by hand can hold
such a pair; that is found out before anything is written.

Known are torch's own classes, torchao's that are written after Adam, and masters over any of them; of another class
nothing can be said. Dtypes are free within their kind: fp32 state of bf16 parameters is common, and so is the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from segue._capture.options import difference
from segue._record.composite import CapturedSparse, CapturedSubclass, ConvertedTensor
from segue._record.sections import OptimizerRecord
from segue._record.tensors import CapturedTensor
from segue.errors import Finding

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """The shape and dtype of a parameter."""

    shape: Shape
    dtype: torch.dtype


_Expected = Callable[[Shape], Shape]


def _same(shape: Shape) -> Shape:
    return shape


def _without_columns(shape: Shape) -> Shape:
    return (*shape[:-1], 1)


def _without_rows(shape: Shape) -> Shape:
    return (*shape[:-2], 1, *shape[-1:])


def _like(*slots: str) -> dict[str, _Expected]:
    return dict.fromkeys(slots, _same)


_ADAM = _like("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# Slots of the parameter's shape, or of one that follows from it (torch 2.13).
_SLOTS: dict[str, dict[str, _Expected]] = {
    "torch.optim.Adafactor": {"row_var": _without_columns, "col_var": _without_rows, "variance": _same},
    "torch.optim.Muon": _like("momentum_buffer"),
    "torch.optim.adadelta.Adadelta": _like("square_avg", "acc_delta"),
    "torch.optim.adagrad.Adagrad": _like("sum"),
    "torch.optim.adam.Adam": _ADAM,
    "torch.optim.adamax.Adamax": _like("exp_avg", "exp_inf"),
    "torch.optim.adamw.AdamW": _ADAM,
    "torch.optim.asgd.ASGD": _like("ax"),
    "torch.optim.nadam.NAdam": _ADAM,
    "torch.optim.radam.RAdam": _ADAM,
    "torch.optim.rmsprop.RMSprop": _like("square_avg", "momentum_buffer", "grad_avg"),
    "torch.optim.rprop.Rprop": _like("prev", "step_size"),
    "torch.optim.sgd.SGD": _like("momentum_buffer"),
    "torch.optim.sparse_adam.SparseAdam": _ADAM,
    **dict.fromkeys((f"torchao.optim.adam.{kind}" for kind in (
        "Adam8bit", "Adam4bit", "AdamFp8", "AdamW8bit", "AdamW4bit", "AdamWFp8", "_AdamW",
    )), _ADAM),
}  # fmt: skip
# Slots of one element.
_SCALARS = frozenset({"step", "mu_product", "eta", "mu"})
_MASTERS, _LBFGS = "segue.optim.FP32Master", "torch.optim.lbfgs.LBFGS"


# Options that decide what a step finds in the state: switched on over state without it, torch fails (torch 2.13).
_ASKS_FOR_STATE = frozenset({"amsgrad", "centered"})


def keeps_its_form(record: OptimizerRecord, key: str, before: Any, now: Any) -> bool:
    """Tell whether the recorded state can be stepped under another value of an option."""
    if not record.state:
        return True
    if record.class_name == _LBFGS and key == "history_size":
        return False  # a list in the state is as long as that
    asks = key in _ASKS_FOR_STATE or (key == "momentum" and record.class_name.endswith(".RMSprop"))
    return not (asks and not before and bool(now))


def check_history(record: OptimizerRecord, layouts: Mapping[str, Layout], scope: str) -> Iterator[Finding]:
    """Yield the recorded state that its parameter can't have: of another shape, or no floats where it has floats.

    Args:
        record: Of any optimizer; that of a class that is not known here passes.
        layouts: Of the parameters by name.
        scope: The optimizer, for codes.
    """
    if record.class_name == _LBFGS:
        yield from _check_flat(record, layouts, scope)
        return
    slots = _slots_of(record)
    for name, state in record.state.items() if slots else ():
        if name in layouts:
            yield from _check_state(state, slots, name, layouts[name], scope)


def _slots_of(record: OptimizerRecord) -> dict[str, _Expected]:
    if record.class_name != _MASTERS:
        return _SLOTS.get(record.class_name, {})
    inner = record.attributes.get("inner") if type(record.attributes) is dict else None
    return {"master": _same, **(_SLOTS.get(inner, {}) if isinstance(inner, str) else {})}


def _check_state(
    state: Mapping[str, Any], slots: Mapping[str, _Expected], name: str, layout: Layout, scope: str
) -> Iterator[Finding]:
    for slot, value in state.items():
        if not isinstance(value, CapturedTensor | CapturedSparse | CapturedSubclass | ConvertedTensor):
            continue
        if slot in _SCALARS and math.prod(value.shape) != 1:
            yield _finding(scope, name, slot, (), value.shape)
        elif slot in slots:
            expected = slots[slot](layout.shape)
            if tuple(value.shape) != expected:
                yield _finding(scope, name, slot, expected, value.shape)
            elif isinstance(value, CapturedTensor) and _kind(value.dtype) != _kind(layout.dtype):
                yield _finding(scope, name, slot, layout.dtype, value.dtype)


def _kind(dtype: torch.dtype) -> tuple[bool, bool]:
    return dtype.is_floating_point, dtype.is_complex


def _check_flat(record: OptimizerRecord, layouts: Mapping[str, Layout], scope: str) -> Iterator[Finding]:
    """Check what LBFGS keeps: vectors over all parameters, under the first."""
    members = [name for group in record.groups for name in group.parameters]
    if not all(name in layouts for name in members):
        return
    for name in record.state:
        if name != members[0]:
            yield difference(
                scope, f"state.{name}", "LBFGS has state of its first parameter alone", f"{scope} {name}",
                members[0], name,
            )  # fmt: skip
    total = (
        sum(
            math.prod(shape) * (2 if dtype.is_complex else 1)
            for shape, dtype in map(layouts.__getitem__, members)
        ),
    )
    for slot, value in record.state.get(members[0], {}).items() if members else ():
        vectors = value if isinstance(value, list | tuple) else [value]
        if slot in ("d", "prev_flat_grad", "old_dirs", "old_stps"):
            for vector in vectors:
                if isinstance(vector, CapturedTensor) and vector.shape != total:
                    yield _finding(scope, members[0], slot, total, vector.shape)


def _finding(scope: str, name: str, slot: str, expected: Any, found: Any) -> Finding:
    return difference(
        scope, f"state.{name}.{slot}", "a history that its parameter can't have", f"{scope} {name} {slot}",
        expected, found,
    )  # fmt: skip
