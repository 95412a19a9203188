"""A module: parameters, all buffers, modes, and the contract that they form.

`load_state_dict` can't do this: it changes tensors before it raises, casts, lets the last of two tied values win,
and knows neither non-persistent buffers nor flags (torch 2.13). So tensors are checked here, completely and first,
and then filled in place: optimizers, averages and compiled code keep their references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from segue._capture.naming import NamedTensor, named_tensors, walk
from segue._capture.staging import capture_tensor, refuse_unsupported, type_name
from segue._capture.writes import ObjectWrite, TensorWrite, Write
from segue._record.contract import Sharing, TensorSpec, TrainableContract
from segue._record.sections import ModuleRecord
from segue.errors import ContractMismatch, DeviceMismatch, Finding, UnsupportedState


def capture_module(module: nn.Module, scope: str) -> ModuleRecord:
    """Copy a module's tensors and modes.

    Raises:
        UnsupportedState: If a tensor, or a module with state of its own making, can't be kept.

    Cost:
        One copy of every distinct parameter and buffer.
    """
    tensors = named_tensors(module, scope)
    contract = contract_of(module, scope, tensors)
    captured = {
        name: None if item.tensor is None else capture_tensor(item.tensor, f"{scope} {name}")
        for name, item in sorted(tensors.items())
    }
    return ModuleRecord(captured, dict(_modes(module, scope)), contract)


def contract_of(
    module: nn.Module, scope: str, tensors: dict[str, NamedTensor] | None = None
) -> TrainableContract:
    """Describe a module's tensors without reading their values.

    Raises:
        UnsupportedState: If a tensor or module can't be kept.
    """
    if tensors is None:
        tensors = named_tensors(module, scope)
    _refuse_extra_state(module, scope)
    for name, item in tensors.items():
        if item.tensor is not None:
            _refuse_lazy(item.tensor, f"{scope} {name}")
            refuse_unsupported(item.tensor, f"{scope} {name}")
    specs = {name: _spec(item) for name, item in sorted(tensors.items())}
    order = tuple(name for name, item in tensors.items() if item.kind == "parameter")
    return TrainableContract(specs, _sharing(tensors), order)


def _refuse_lazy(tensor: torch.Tensor, where: str) -> None:
    if nn.parameter.is_lazy(tensor):
        raise UnsupportedState(
            "a lazy parameter has no shape yet",
            where=where,
            found=type_name(tensor),
            hint="run one forward first",
        )


def _refuse_extra_state(module: nn.Module, scope: str) -> None:
    for path, child in walk(module, scope):
        if type(child).get_extra_state is not nn.Module.get_extra_state:
            raise UnsupportedState(
                "a module with `get_extra_state` is not supported yet",
                where=f"{scope} {path}",
                found=type_name(child),
            )


def _spec(item: NamedTensor) -> TensorSpec | None:
    tensor = item.tensor
    if tensor is None:
        return None
    return TensorSpec(
        item.kind, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()),
        str(tensor.device), tensor.requires_grad, _grad_dtype(tensor),
    )  # fmt: skip


def _grad_dtype(tensor: torch.Tensor) -> str | None:
    """Return the gradient's dtype where it is not the tensor's own; `grad_dtype=None` admits any (torch 2.13)."""
    grad_dtype = tensor.grad_dtype if tensor.is_leaf else tensor.dtype
    if grad_dtype == tensor.dtype:
        return None
    return "any" if grad_dtype is None else str(grad_dtype).removeprefix("torch.")


def _sharing(tensors: dict[str, NamedTensor]) -> tuple[Sharing, ...]:
    """Group names by object and by storage: `named_parameters` doesn't see two parameters over one memory."""
    storages: dict[tuple[str, int], list[NamedTensor]] = {}
    for item in tensors.values():
        if item.tensor is not None and item.tensor.numel():
            key = (str(item.tensor.device), item.tensor.untyped_storage().data_ptr())
            storages.setdefault(key, []).append(item)
    return tuple(
        sorted(filter(None, map(_storage_sharing, storages.values())), key=lambda s: sorted(s.members))
    )


def _storage_sharing(items: list[NamedTensor]) -> Sharing | None:
    offsets = {
        alias: int(item.tensor.storage_offset()) * item.tensor.element_size()
        for item in items
        if item.tensor is not None
        for alias in item.aliases
    }
    if len(offsets) < 2:
        return None
    start = min(offsets.values())
    return Sharing({name: offsets[name] - start for name in sorted(offsets)}, tied=len(items) == 1)


def _modes(module: nn.Module, scope: str) -> Iterator[tuple[str, bool]]:
    for path, child in walk(module, scope):
        yield path, child.training


def check_module(record: ModuleRecord, module: nn.Module, scope: str) -> Iterator[Finding]:
    """Yield what keeps the record from fitting this module: devices first, then contract, then submodules."""
    found = contract_of(module, scope)
    yield from _device_findings(record.contract, found, scope)
    yield from record.contract.differences(found, scope)
    modes = dict(_modes(module, scope))
    for path in sorted(record.training.keys() ^ modes.keys()):
        side = ("present", "absent") if path in record.training else ("absent", "present")
        yield Finding(
            ContractMismatch,
            f"{scope}.module.{path}",
            "a submodule is on one side only",
            f"{scope} {path}",
            *side,
        )


def _device_findings(record: TrainableContract, found: TrainableContract, scope: str) -> Iterator[Finding]:
    for name, spec in record.tensors.items():
        live = found.tensors.get(name)
        if spec is not None and live is not None and spec.device != live.device:
            yield Finding(
                DeviceMismatch, f"{scope}.device.{name}", "it lives on another device; nothing is moved",
                f"{scope} {name}", spec.device, live.device,
                f'move the model, or use `segue.load(url, device="{live.device}")`',
            )  # fmt: skip


def plan_module(record: ModuleRecord, module: nn.Module, scope: str) -> list[Write]:
    """Plan to fill every tensor in place and to set every mode; needs a record that `check_module` admitted."""
    tensors = named_tensors(module, scope)
    writes: list[Write] = []
    for name, captured in record.tensors.items():
        target = tensors[name].tensor
        if captured is not None and target is not None:
            writes.append(TensorWrite(f"{scope} {name}", target, captured))
    for path, child in walk(module, scope):
        writes.append(ObjectWrite(f"{scope} {path} mode", _set_mode(child, record.training[path])))
    return writes


def _set_mode(module: nn.Module, training: bool) -> Callable[[], None]:
    def assign() -> None:
        # Not `train()`: it recurses, and users override it.
        module.training = training

    return assign
