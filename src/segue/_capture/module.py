"""A module: parameters, all buffers, modes, extra state, settings, and the contract that its tensors form.

`load_state_dict` can't do this: it changes tensors before it raises, casts, lets the last of two tied values win,
and knows neither non-persistent buffers nor flags (torch 2.13). So tensors are checked here, completely and first,
and then filled in place: optimizers, averages and compiled code keep their references.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from segue._capture.configuration import configuration_differences, configuration_of
from segue._capture.extra_state import capture_extra, check_extra, plan_extra
from segue._capture.lazily import lazy_findings, plan_sizes
from segue._capture.memory import byte_range, storage_of
from segue._capture.modes import modes_of, paths_with_modes, plan_modes
from segue._capture.naming import NamedTensor, buffer_places, named_tensors, walk
from segue._capture.packed import is_packed
from segue._capture.settings import Settings, bind_settings, settings_of
from segue._capture.staging import (
    capture_registered,
    is_plain,
    parts_spec,
    plain_parts,
    refuse_unsupported,
    type_name,
)
from segue._capture.subclass import is_admitted_subclass
from segue._capture.targets import empty_like, fill_writes
from segue._capture.writes import ObjectWrite, Write
from segue._record.base import BaseRecord
from segue._record.composite import ConvertedTensor
from segue._record.contract import Sharing, TensorSpec, TrainableContract
from segue._record.sections import ModuleRecord
from segue._record.tensors import CapturedTensor
from segue.errors import ContractMismatch, DeviceMismatch, Finding, UnsupportedState

_first_bound: weakref.WeakKeyDictionary[nn.Module, dict[str, TensorSpec | None]] = weakref.WeakKeyDictionary()


BaseOf = Callable[[Mapping[str, NamedTensor], TrainableContract], BaseRecord]


def bind_module(module: nn.Module, scope: str) -> None:
    """Remember what a module's tensors are, without values, and its settings, the first time it is seen in this process."""
    if module not in _first_bound:
        specs: dict[str, TensorSpec | None] = {}
        for name, item in named_tensors(module, scope).items():
            if _has_spec(item.tensor):
                with contextlib.suppress(UnsupportedState):  # capture tells
                    specs[name] = spec_of(item)
        _first_bound[module] = specs
    bind_settings(module, scope)


def _has_spec(tensor: torch.Tensor | None) -> bool:
    return tensor is None or (tensor.layout is torch.strided and not nn.parameter.is_lazy(tensor))


def capture_module(module: nn.Module, scope: str, base_of: BaseOf | None = None) -> ModuleRecord:
    """Copy a module's tensors and modes, what it says by `get_extra_state`, and what modules of torch compute with.

    Args:
        module: The module.
        scope: What it is, for messages.
        base_of: Tells what to leave out, of all tensors and their contract; nothing of that is read here.

    Raises:
        UnsupportedState: If a tensor, or what a module saves in a way of its own, can't be kept.

    Cost:
        One copy of every distinct parameter and buffer that isn't left out.
    """
    tensors = named_tensors(module, scope)
    contract = contract_of(module, scope, tensors)
    base = None if base_of is None else base_of(tensors, contract)
    omitted = base.omitted if base is not None else {}
    captured = {
        name: None if item.tensor is None else capture_registered(item.tensor, f"{scope} {name}")
        for name, item in sorted(tensors.items())
        if name not in omitted
    }
    configuration = configuration_of(module, scope, everywhere=base is not None)
    return ModuleRecord(
        captured, dict(modes_of(module, scope)), contract, base, configuration, capture_extra(module, scope),
        settings_of(module, scope),
    )  # fmt: skip


def contract_of(
    module: nn.Module, scope: str, tensors: dict[str, NamedTensor] | None = None
) -> TrainableContract:
    """Describe a module's tensors without reading their values.

    Raises:
        UnsupportedState: If a tensor or module can't be kept.
    """
    if tensors is None:
        tensors = named_tensors(module, scope)
    _refuse_own_entries(module, scope)
    for name, item in tensors.items():
        if item.tensor is not None:
            _refuse_lazy(item.tensor, f"{scope} {name}")
            if item.tensor.requires_grad or not is_packed(item.tensor):  # one that is frozen may be left out
                refuse_unsupported(item.tensor, f"{scope} {name}")
            _refuse_trained_buffer(item, f"{scope} {name}")
    specs = {name: spec_of(item) for name, item in sorted(tensors.items())}
    order = tuple(name for name, item in tensors.items() if item.kind == "parameter")
    bound = {
        name: spec
        for name, spec in sorted(_first_bound.get(module, {}).items())
        if name in specs and spec != specs[name]
    }
    return TrainableContract(specs, sharing_of(tensors), order, bound)


def _refuse_lazy(tensor: torch.Tensor, where: str) -> None:
    if nn.parameter.is_lazy(tensor):
        raise UnsupportedState(
            "a lazy parameter has no shape yet",
            where=where,
            found=type_name(tensor),
            hint="run one forward first",
        )


def _refuse_trained_buffer(item: NamedTensor, where: str) -> None:
    if item.kind != "parameter" and item.tensor is not None and item.tensor.requires_grad:
        raise UnsupportedState(
            "a buffer that requires grad can't be kept: its gradient or graph would be lost", where=where,
            found=type_name(item.tensor), hint="make it a Parameter, or assign `tensor.detach()`",
        )  # fmt: skip


def _refuse_own_entries(module: nn.Module, scope: str) -> None:
    for path, child in walk(module, scope):
        if _saves_its_own_way(child):
            _refuse_unregistered_entries(child, f"{scope} {path}")


def _saves_its_own_way(module: nn.Module) -> bool:
    """Tell whether code of the program's decides what a state dict holds; torch's own only renames or migrates."""
    hooks = vars(module).get("_state_dict_hooks") or {}
    return any(not _is_of_torch(hook) for hook in hooks.values()) or any(
        name in vars(cls) and not _is_of_torch(cls)
        for cls in type(module).__mro__
        for name in ("state_dict", "_save_to_state_dict")
    )


def _is_of_torch(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).startswith("torch.")


def _refuse_unregistered_entries(module: nn.Module, where: str) -> None:
    """Raise if a module's state dict has entries that are neither parameters nor buffers: they would be dropped.

    One under another name is none of its own, nor is extra state, which is kept.
    """
    registered = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    memory = {_memory(tensor) for tensor in registered.values()}
    # What hangs on a packed weight is that weight's affair: read with a base, and refused with the weight itself.
    packed = tuple(f"{name}." for name, tensor in module.named_parameters() if is_packed(tensor))
    entries = [
        str(name)
        for name, value in module.state_dict().items()
        if name not in registered
        and not name.startswith(packed)
        and name.rpartition(".")[2] != _EXTRA_STATE
        and not (isinstance(value, torch.Tensor) and _memory(value) in memory)
    ]
    if entries:
        raise UnsupportedState(
            "a module whose `state_dict` has entries of its own is not supported yet", where=where,
            found=f"{type_name(module)} with {', '.join(entries[:5])}",
            hint="register them as buffers, or return them from `get_extra_state` and take them in `set_extra_state`; or "
            "hand the object in as a component with `capture`, `check` and `restore`",
        )  # fmt: skip


_EXTRA_STATE = nn.modules.module._EXTRA_STATE_KEY_SUFFIX


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    if nn.parameter.is_lazy(tensor) or not is_plain(tensor) or tensor.numel() == 0:
        return (id(tensor),)
    return storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def spec_of(item: NamedTensor) -> TensorSpec | None:
    """Describe a registered tensor without its values; `None` for a buffer that is `None`."""
    tensor = item.tensor
    if tensor is None:
        return None
    return TensorSpec(
        item.kind, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()),
        str(tensor.device), tensor.requires_grad, _grad_dtype(tensor), parts_spec(tensor, item.name),
    )  # fmt: skip


def _grad_dtype(tensor: torch.Tensor) -> str | None:
    """Return the gradient's dtype where it is not the tensor's own; `grad_dtype=None` admits any (torch 2.13)."""
    grad_dtype = tensor.grad_dtype if tensor.is_leaf else tensor.dtype
    if grad_dtype == tensor.dtype:
        return None
    return "any" if grad_dtype is None else str(grad_dtype).removeprefix("torch.")


class _Piece(NamedTuple):
    """A registered tensor, or a part of one: what has memory."""

    item: NamedTensor
    tensor: torch.Tensor
    part: str
    """The name of the part; empty for the whole of a plain tensor."""

    @property
    def names(self) -> list[str]:
        return [f"{alias}.{self.part}" if self.part else alias for alias in self.item.aliases]


def sharing_of(tensors: dict[str, NamedTensor]) -> tuple[Sharing, ...]:
    """Group names whose tensors are one, or overlap: `named_parameters` doesn't see two parameters over one memory.

    Neighbours in one storage (slices of a flat buffer) have nothing to do with each other. What overlaps a part of a
    tensor subclass is grouped with `name.part`.
    """
    storages: dict[tuple[str, int], list[_Piece]] = {}
    for piece in _pieces(tensors):
        if piece.tensor.numel():
            storages.setdefault(storage_of(piece.tensor), []).append(piece)
    groups = [_group_sharing(group) for pieces in storages.values() for group in _overlapping(pieces)]
    groups += [_tied_subclass(item) for item in tensors.values() if len(item.aliases) > 1]
    return tuple(sorted(filter(None, groups), key=lambda sharing: sorted(sharing.members)))


def _pieces(tensors: dict[str, NamedTensor]) -> Iterator[_Piece]:
    for item in tensors.values():
        if item.tensor is not None:
            for part, tensor in plain_parts(item.tensor):
                yield _Piece(item, tensor, part)


def _overlapping(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Split tensors of one storage into groups that overlap."""
    if len(pieces) == 1:
        yield pieces
        return
    ranges = sorted(((*byte_range(piece.tensor), piece) for piece in pieces), key=lambda r: r[:2])
    group: list[_Piece] = []
    reach = 0
    for start, end, piece in ranges:
        if group and start >= reach:
            yield group
            group = []
        group.append(piece)
        reach = max(reach, end)
    yield group


def _group_sharing(pieces: list[_Piece]) -> Sharing | None:
    if len(pieces) == 1 and (
        pieces[0].part or len(pieces[0].item.aliases) == 1
    ):  # a tied whole tells of its parts
        return None
    offsets = {name: byte_range(piece.tensor)[0] for piece in pieces for name in piece.names}
    if len(offsets) < 2:
        return None
    start = min(offsets.values())
    return Sharing({name: offsets[name] - start for name in sorted(offsets)}, tied=len(pieces) == 1)


def _tied_subclass(item: NamedTensor) -> Sharing | None:
    if item.tensor is None or not is_admitted_subclass(item.tensor):
        return None
    return Sharing(dict.fromkeys(item.aliases, 0), tied=True)


def check_module(record: ModuleRecord, module: nn.Module, scope: str) -> Iterator[Finding]:
    """Yield what keeps the record from fitting this module: devices first, then contract, then submodules."""
    found = contract_of(module, scope)
    yield from _device_findings(record.contract, found, scope)
    modes = paths_with_modes(record.training.keys(), module, scope)
    places, both = dict(walk(module, scope)), record.training.keys() & modes
    settings = Settings(record.settings, module, places.items(), scope)
    configured: set[tuple[str, str]] = set()
    if record.configuration is not None:  # before shapes, which may follow from it
        live = configuration_of(module, scope, everywhere=record.base is not None) or {}
        live = _with_agreed(live, record.configuration, settings)
        configured = {(path, name) for path in live for name in record.configuration.get(path, {})}
        yield from configuration_differences(record.configuration, live, both, scope)
    yield from lazy_findings(record, places.items(), scope)
    yield from record.contract.differences(found, scope)
    yield from settings.findings(both, told=configured)
    yield from check_extra(record.extra, places.items(), scope, both)
    told = _owners_of_one_sided(record.contract, found)
    for path in _topmost(record.training.keys() ^ modes):
        if path in told:
            continue
        side = ("present", "absent") if path in record.training else ("absent", "present")
        yield Finding(
            ContractMismatch, f"{scope}.module.{path}", "a submodule is on one side only", f"{scope} {path}", *side,
            admissible=True,
        )  # fmt: skip


def _with_agreed(
    live: Mapping[str, dict[str, Any]], record: Mapping[str, dict[str, Any]], settings: Settings
) -> dict[str, dict[str, Any]]:
    """Return what adapters compute with, as recorded where the run has moved a setting, which is set again."""
    return {
        path: {
            name: record[path][name]
            if name in record.get(path, {}) and settings.agrees(path, name)
            else value
            for name, value in attributes.items()
        }
        for path, attributes in live.items()
    }


def _topmost(paths: Collection[str]) -> list[str]:
    """Leave out submodules of those that are among these paths: they come and go with them."""
    found: list[str] = []
    for path in sorted(paths, key=lambda path: path.split(".")):  # what is in a module stands behind it
        if not (found and path.startswith(f"{found[-1]}.")):
            found.append(path)
    return found


def _owners_of_one_sided(record: TrainableContract, found: TrainableContract) -> set[str]:
    """Return the submodules with tensors which one side lacks: that is told of each, and they go with them."""
    owners: set[str] = set()
    for name in record.tensors.keys() ^ found.tensors.keys():
        while name := name.rpartition(".")[0]:
            owners.add(name)
    return owners


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
    """Plan to fill every tensor in place and to set every flag; needs a record that `check_module` admitted.

    Every tensor of it must be in its own dtype. A buffer that had been replaced by the time of the record gets a new
    tensor of the recorded layout, a parameter that had been laid out otherwise new memory.
    """
    tensors = named_tensors(module, scope)
    places = buffer_places(module, scope)
    writes: list[Write] = []
    for name, captured in record.tensors.items():
        assert not isinstance(captured, ConvertedTensor), "planned are records in their own dtypes"
        if name not in tensors:
            continue  # it was accepted that it is gone
        item, where = tensors[name], f"{scope} {name}"
        spec = record.contract.tensors[name]
        target = item.tensor
        if item.kind != "parameter" and spec_of(item) != spec:
            target = None if captured is None else empty_like(captured, captured.device)
            writes.extend(ObjectWrite(where, _rebind(*places[alias], target)) for alias in item.aliases)
        elif (
            target is not None and isinstance(captured, CapturedTensor) and not captured.has_layout_of(target)
        ):
            # Its optimizer has laid it out otherwise, as the run went on or since.
            assert item.tensor is not None, "a parameter is never None"
            target = empty_like(captured, captured.device)
            writes.append(ObjectWrite(where, _lay_out(item.tensor, target)))
        if captured is not None and target is not None:
            writes.extend(fill_writes(where, target, captured))
        if item.kind == "parameter" and spec is not None and item.tensor is not None:
            writes.append(flag_write(where, item.tensor, spec.requires_grad))
    writes.extend(plan_extra(record.extra, module, scope, list(writes)))
    writes.extend(plan_sizes(record, walk(module, scope), scope))
    writes.extend(Settings(record.settings, module, walk(module, scope), scope).plan())
    writes.extend(plan_modes(record.training, module, scope))
    return writes


def _rebind(owner: nn.Module, attribute: str, tensor: torch.Tensor | None) -> Callable[[], None]:
    def assign() -> None:
        owner._buffers[attribute] = tensor

    return assign


def _lay_out(parameter: torch.Tensor, memory: torch.Tensor) -> Callable[[], None]:
    def assign() -> None:
        # As optimizers do it: the parameter stays the object that others hold.
        parameter.data = memory

    return assign


def flag_write(where: str, parameter: torch.Tensor, requires_grad: bool) -> Write:
    """Plan to make a parameter trainable or frozen, if it is not."""

    def assign() -> None:
        if parameter.requires_grad != requires_grad:
            parameter.requires_grad_(requires_grad)

    return ObjectWrite(f"{where} flag", assign)
