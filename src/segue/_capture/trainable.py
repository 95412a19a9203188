"""The trainable part of a model that someone else restores: its contract, and whether pending gradients fit it.

Who restores a model by means of their own answers for what is frozen. So nothing here refuses a frozen tensor, whatever
it is: packed, without memory, of a class that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.gradients import Parameters
from segue._capture.memory import byte_range, storage_of
from segue._capture.module import sharing_of, spec_of
from segue._capture.naming import NamedTensor, named_tensors
from segue._capture.staging import plain_parts, refuse_unsupported
from segue._record.contract import TrainableContract
from segue._record.quantized import QuantizedTensor
from segue.errors import Finding, PendingGradientError, TiedParameterConflict, UnsupportedState

Pending = Iterable[tuple[nn.Parameter, Any]]
"""Gradients that wait for an update, by parameter; an accumulator of the caller's may hold what is no tensor."""


def trainable_contract(model: nn.Module) -> TrainableContract:
    """Describe the distinct trainable parameters of a model: names, layouts, ties. No value is read.

    Raises:
        TiedParameterConflict: If two of them are one memory, and differ in dtype or shape.
        UnsupportedState: If one of them has no exact representation, or no values yet.
    """
    tensors = named_tensors(model, "model")
    trainable = {name: item for name, item in tensors.items() if _is_trainable(item)}
    for name, item in trainable.items():
        _refuse_unfinished(item, f"model {name}")
    refuse_tied_conflicts(trainable)
    return TrainableContract(
        {name: spec_of(item) for name, item in sorted(trainable.items())},
        sharing_of({name: item for name, item in tensors.items() if _has_memory(item)}),
        tuple(trainable),
    ).trainable_part()


def _is_trainable(item: NamedTensor) -> bool:
    return isinstance(item.tensor, nn.Parameter) and item.tensor.requires_grad


def _refuse_unfinished(item: NamedTensor, where: str) -> None:
    assert item.tensor is not None, "a trainable one is a tensor"
    if nn.parameter.is_lazy(item.tensor):
        raise UnsupportedState("a lazy parameter has no shape yet", where=where, hint="run one forward first")
    refuse_unsupported(item.tensor, where)


def _has_memory(item: NamedTensor) -> bool:
    if item.tensor is None or nn.parameter.is_lazy(item.tensor):
        return False
    return all(
        part.layout is torch.strided and part.device.type != "meta" for _, part in plain_parts(item.tensor)
    )


def refuse_tied_conflicts(trainable: Mapping[str, NamedTensor]) -> None:
    """Raise if two parameters over the same bytes take them for something else: their gradients can't be one sum.

    Raises:
        TiedParameterConflict: Naming both.
    """
    seen: dict[tuple[object, ...], tuple[str, torch.Tensor]] = {}
    for name, item in trainable.items():
        tensor = item.tensor
        if tensor is None or not _has_memory(item) or tensor.numel() == 0:
            continue
        for part, plain in plain_parts(tensor):
            own = f"{name}.{part}" if part else name
            other, first = seen.setdefault((storage_of(plain), byte_range(plain)), (own, plain))
            if (first.dtype, first.shape) != (plain.dtype, plain.shape):
                raise TiedParameterConflict(
                    "two trainable parameters are one memory, and differ in dtype or shape", where=f"model {own}",
                    expected=f"as {other}: {first.dtype} {tuple(first.shape)}",
                    found=f"{plain.dtype} {tuple(plain.shape)}", hint="tie them as one Parameter, and take views in forward",
                )  # fmt: skip


def contract_differences(
    recorded: TrainableContract, model: nn.Module, *, has_optimizers: bool
) -> Iterator[Finding]:
    """Yield what differs between the recorded trainable parameters and those of a model that someone has restored.

    Names decide, so another order is none. In which dtype gradients come, optimizers set: so it is compared only once
    these have been made.
    """
    left_out = ("model.order",) if has_optimizers else ("model.order", "model.grad_dtype.")
    for finding in recorded.trainable_part().differences(trainable_contract(model), "model"):
        if not finding.code.startswith(left_out):
            yield finding


def refuse_unfit_pending(pending: Pending, parameters: Parameters) -> None:
    """Raise for a pending gradient that no parameter of the model takes, whether that is trainable or not.

    Raises:
        PendingGradientError: If its parameter is not in the model; or it is quantized, of another shape, or elsewhere.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    for parameter, gradient in pending:
        name = names.get(id(parameter))
        if name is None:
            raise PendingGradientError(
                "a pending gradient's parameter is not in the model", where="accumulator", found=_shown(gradient),
                hint="make the accumulator over this model, not over a copy",
            )  # fmt: skip
        where = f"gradient of {name}"
        if isinstance(gradient, QuantizedTensor):
            raise PendingGradientError(
                "a quantized gradient can't be pending; it lives in a record alone", where=where, found="QuantizedTensor",
            )  # fmt: skip
        if gradient.shape != parameter.shape:
            raise PendingGradientError(
                "a pending gradient has another shape than its parameter", where=where,
                expected=tuple(parameter.shape), found=tuple(gradient.shape),
            )  # fmt: skip
        if gradient.device != parameter.device:
            raise PendingGradientError(
                "a pending gradient is on another device than its parameter", where=where,
                expected=str(parameter.device), found=str(gradient.device),
            )  # fmt: skip


def refuse_frozen_pending(pending: Pending, parameters: Parameters) -> None:
    """Raise for a pending gradient whose parameter is frozen.

    Raises:
        PendingGradientError: Naming the parameter.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    for parameter, gradient in pending:
        if not parameter.requires_grad:
            raise PendingGradientError(
                "a pending gradient's parameter is frozen", where=f"gradient of {names[id(parameter)]}",
                found=_shown(gradient), hint="freeze parameters between windows, and set their `.grad` to None",
            )  # fmt: skip


def _shown(gradient: object) -> str:
    if isinstance(gradient, torch.Tensor):
        return f"{gradient.dtype} {tuple(gradient.shape)}"
    return type(gradient).__name__
