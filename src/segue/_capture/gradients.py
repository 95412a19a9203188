"""Pending gradients: what stands in `.grad`, and what an accumulator has summed.

Absent, zero and `None` differ: an optimizer skips a parameter without a gradient, and decays one with a zero.
Strides are kept, since a gradient that comes back in another layout changes the last bits of its norm (torch 2.13).
A sparse gradient keeps its indices in their order, duplicates included: coalescing adds values up in another order.
Quantized ones live in records alone: no `.grad` takes them, and nothing here dequantizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch

from segue._capture.memory import Memory
from segue._capture.shared_parts import SharedParts, assemble_shared
from segue._capture.staging import capture_value
from segue._capture.writes import ObjectWrite, TensorWrite, Write
from segue._record.composite import CapturedSparse, ConvertedTensor
from segue._record.gradients import GradientsRecord
from segue._record.tensors import CapturedTensor, empty_like_captured
from segue._record.window import WindowRecord, WindowState
from segue.errors import (
    ContractMismatch,
    Finding,
    LossyRecord,
    PendingGradientError,
    UnsupportedState,
    WindowError,
)

Parameters = Mapping[str, torch.nn.Parameter]
"""The distinct registered parameters by canonical name."""


class PendingSource(Protocol):
    """An accumulator, as capture sees it. Sums are keyed by the parameter object, never by position."""

    def window_state(self) -> WindowState:
        """Return the counters."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the parameters whose gradients it sums."""
        ...

    def sums(self) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Return the live sums of this window; not copies."""
        ...

    def check_window(self, state: WindowState) -> None:
        """Raise `WindowError` if this accumulator could not go on with that window."""
        ...

    def handed_out(self) -> Iterable[torch.nn.Parameter]:
        """Return the parameters whose `.grad` is still what the last window handed out."""
        ...

    def replace_window(
        self,
        state: WindowState,
        sums: Iterable[tuple[torch.nn.Parameter, torch.Tensor]],
        handed_out: Iterable[torch.nn.Parameter],
    ) -> None:
        """Take over counters and sums, replacing what was there; can't fail once `check_window` passed.

        Every `.grad` stands already.
        """
        ...


def capture_gradients(parameters: Parameters) -> GradientsRecord:
    """Copy every gradient that stands in `.grad`.

    Raises:
        PendingGradientError: If a frozen parameter has one.
        UnsupportedState: If one is part of a graph, overlaps another without being the same memory, or otherwise
            can't be kept.
    """
    gradients = {name: item.grad for name, item in parameters.items() if item.grad is not None}
    for name, gradient in gradients.items():
        if not parameters[name].requires_grad:
            raise PendingGradientError(
                "a frozen parameter has a pending gradient", where=f"gradient of {name}",
                found=f"{gradient.dtype} {tuple(gradient.shape)}",
                hint="set its `.grad` to None when you freeze it, or an optimizer would still use it",
            )  # fmt: skip
    return capture_table(gradients, "gradient")


def capture_table(gradients: Mapping[str, torch.Tensor], scope: str) -> GradientsRecord:
    """Copy gradients by name; which are one memory is kept.

    Raises:
        UnsupportedState: As in `capture_gradients`.
    """
    shared = SharedParts()
    captured = {}
    for name, gradient in gradients.items():
        where = f"{scope} of {name}"
        refuse_graph(gradient, where)
        shared.claim(gradient, name, where)
        captured[name] = capture_value(gradient, where)
    return GradientsRecord(captured, shared.groups)


def refuse_graph(gradient: torch.Tensor, where: str) -> None:
    """Raise `UnsupportedState` for a gradient that can be differentiated itself: the graph would be lost."""
    if gradient.requires_grad:
        raise UnsupportedState(
            "a gradient that is part of a graph can't be kept", where=where, found="requires_grad"
        )


def capture_window(accumulator: PendingSource, parameters: Parameters) -> WindowRecord:
    """Copy an accumulator's counters and sums.

    Raises:
        PendingGradientError: If it holds a sum for a parameter of no registered module.
        UnsupportedState: If a sum can't be kept.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    if not names.keys() >= {id(parameter) for parameter in accumulator.parameters()}:
        raise PendingGradientError(
            "the accumulator is over a parameter of no registered module", where="accumulator",
            hint="make it over the model of this training, not over a copy; hand other modules in as components",
        )  # fmt: skip
    sums = {}
    for parameter, total in accumulator.sums():
        name = names.get(id(parameter))
        if name is None:
            raise PendingGradientError(
                "the accumulator holds a sum for a parameter of no registered module", where="accumulator",
                found=f"{total.dtype} {tuple(total.shape)}", hint="make it over the model of this training",
            )  # fmt: skip
        sums[name] = total
    handed_out = tuple(
        sorted(names[id(parameter)] for parameter in accumulator.handed_out() if id(parameter) in names)
    )
    return WindowRecord(accumulator.window_state(), capture_table(sums, "window sum"), handed_out)


_NOUNS = {"gradient": "pending gradient", "window": "window sum"}


def check_gradients(
    record: GradientsRecord, parameters: Parameters, scope: str = "gradient"
) -> Iterator[Finding]:
    """Yield the gradients that have no parameter of their shape and dtype here.

    Whether it is trainable is for the contract to tell: a restore sets the flag before the gradient.
    """
    for name, captured in record.tensors.items():
        parameter = parameters.get(name)
        where = f"{scope} of {name}"
        if not isinstance(captured, CapturedTensor | CapturedSparse | ConvertedTensor):
            what = "a quantized gradient can't stand in `.grad` or in a window; it lives in a record alone"
            yield Finding(
                ContractMismatch, f"{scope}.{name}", what, where, "floats", type(captured).__name__,
                "`segue.quant.dequantize` gives its numbers",
            )  # fmt: skip
        elif parameter is None:
            what = f"a {_NOUNS[scope]} has no parameter"
            yield Finding(
                ContractMismatch, f"{scope}.{name}", what, where, name, "absent",
                "of another model? `GradientsRecord.renamed` gives gradients other names",
            )  # fmt: skip
        elif tuple(parameter.shape) != captured.shape:
            found_shape = tuple(parameter.shape)
            what = f"a {_NOUNS[scope]} has another shape than its parameter"
            yield Finding(ContractMismatch, f"{scope}.{name}", what, where, captured.shape, found_shape)
        elif isinstance(captured, CapturedSparse) and captured.layout != "sparse_coo":
            what = "a gradient of this layout can't stand in `.grad`"  # torch 2.13 refuses to assign it
            yield Finding(ContractMismatch, f"{scope}.{name}", what, where, "sparse_coo", captured.layout)
        elif scope == "gradient" and parameter.grad_dtype not in (None, captured.dtype):
            # As after `parameter.data = parameter.data.to(...)` under a standing gradient (torch 2.13).
            what = "a pending gradient has a dtype that its parameter does not take"
            yield Finding(
                ContractMismatch, f"{scope}.{name}", what, where, captured.dtype, parameter.grad_dtype,
                "set the parameter's `grad_dtype`, or take gradients when none of another dtype is pending",
            )  # fmt: skip


def check_lossless(record: GradientsRecord, scope: str) -> Iterator[Finding]:
    """Yield the gradients that were stored in a precision which lost bits, for who restores them without a record."""
    for name in record.lossy:
        tensor = record.tensors[name]
        assert isinstance(tensor, ConvertedTensor), "only these are lossy"
        yield Finding(
            LossyRecord, f"{scope}.lossy.{name}", f"a {_NOUNS[scope]} was stored in a dtype that does not hold it",
            f"{scope} of {name}", tensor.dtype, tensor.stored.dtype,
            "use the record as it was before it was converted, or convert to one that holds it (see `lossy`)",
        )  # fmt: skip


def check_trainable(record: GradientsRecord, parameters: Parameters, scope: str) -> Iterator[Finding]:
    """Yield the gradients whose parameter is frozen here, for who restores them without flags."""
    for name in record.names:
        parameter = parameters.get(name)
        if parameter is not None and not parameter.requires_grad:
            yield Finding(
                ContractMismatch, f"{scope}.frozen.{name}", "a pending gradient's parameter is frozen",
                f"{scope} of {name}", "trainable", "frozen", "unfreeze it, or `select` the others",
            )  # fmt: skip


def check_window(
    record: WindowRecord, accumulator: PendingSource, parameters: Parameters
) -> Iterator[Finding]:
    """Yield what keeps an accumulator from going on with the recorded window."""
    try:
        accumulator.check_window(record.state)
    except WindowError as error:
        yield Finding(
            ContractMismatch, error.code, error.what, "accumulator", error.expected, error.found, error.hint
        )
        yield from error.also
    yield from check_gradients(record.sums, parameters, "window")
    own = {id(parameter) for parameter in accumulator.parameters()}
    for name in record.sums.names:
        parameter = parameters.get(name)
        fits = parameter is not None and tuple(parameter.shape) == record.sums.shape(name)
        if fits and id(parameter) not in own:
            yield Finding(
                ContractMismatch, f"window.unknown.{name}", "the accumulator is over a model without this parameter",
                f"window sum of {name}", name, "absent", "make it over the model that it was over",
            )  # fmt: skip
    for name in record.handed_out:
        if name not in parameters:
            what = "a gradient that was handed out has no parameter"
            yield Finding(
                ContractMismatch, f"window.handed_out.{name}", what, f"gradient of {name}", name, "absent"
            )


def plan_gradients(record: GradientsRecord, parameters: Parameters) -> list[Write]:
    """Plan to set every `.grad`, to `None` where the record has none; needs a record in its own dtypes.

    A live gradient of the same layout is filled in place: it may be a view of a flat buffer that the program made.
    Those that are one memory are new, for it to be theirs alone.
    """
    writes: list[Write] = []
    memory = Memory()
    new = _shared(record, parameters)
    for name, parameter in parameters.items():
        captured, where = record.tensors.get(name), f"gradient of {name}"
        gradient = new.get(name)
        if gradient is None and isinstance(captured, CapturedTensor):
            gradient = parameter.grad
            if gradient is None or not _fits(gradient, captured) or memory.claim(gradient, name) is not None:
                gradient = empty_like_captured(captured, parameter.device)
            writes.append(TensorWrite(where, gradient, captured))
        writes.append(ObjectWrite(where, _set_gradient(parameter, gradient)))
    return writes


def _shared(record: GradientsRecord, parameters: Parameters) -> dict[str, torch.Tensor]:
    """Make the live gradients that can't be filled in place.

    All of them before anything is written, since indices that point nowhere are found only then.
    """
    return assemble_shared(record, {name: parameters[name].device for name in record.tensors})


def _fits(gradient: torch.Tensor, captured: CapturedTensor) -> bool:
    return (
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and not (gradient.requires_grad or gradient.is_inference())
        and captured.has_layout_of(gradient)
    )


def _set_gradient(parameter: torch.nn.Parameter, gradient: torch.Tensor | None) -> Callable[[], None]:
    def assign() -> None:
        parameter.grad = gradient

    return assign


def plan_window(record: WindowRecord, accumulator: PendingSource, parameters: Parameters) -> list[Write]:
    """Allocate the sums and plan to hand them to the accumulator; needs a record in its own dtypes."""
    writes: list[Write] = []
    sums = []
    new = _shared(record.sums, parameters)
    for name, captured in record.sums.tensors.items():
        if name in new:
            target = new[name]
        else:
            assert isinstance(captured, CapturedTensor), "all others are made"
            target = empty_like_captured(captured, parameters[name].device)
            writes.append(TensorWrite(f"window sum of {name}", target, captured))
        sums.append((parameters[name], target))
    consumed = [parameters[name] for name in record.handed_out]
    writes.append(
        ObjectWrite("accumulator", lambda: accumulator.replace_window(record.state, sums, consumed))
    )
    return writes
