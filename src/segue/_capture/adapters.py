"""Adapters of peft, recognised by type: what is theirs, and what they compute with besides tensors.

Wish: an adapter's checkpoint can't be put on a model that would compute something else with the same tensors. Rank
shows in shapes; scale, dropout and which adapter is active are plain attributes, in no state dict (peft 0.21). So they
are taken down and compared bit for bit.

Some kinds keep tensors in neither parameters nor buffers. Indices say which elements a small tensor is about (SHiRA,
FourierFT): configuration, compared by digest. What counts on while it trains (the ranks of AdaLoRA and AdaMSS by their
importance) is state that peft itself never saves (peft 0.21): refused, unless a component keeps it.

peft is never imported here: its objects exist only where the program has imported it, and classes are known by name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from segue._capture.naming import joined, unwrapped, walk
from segue._capture.staging import capture_tensor, class_name, is_plain, type_name
from segue._record.digest import tree_digest
from segue.errors import UnsupportedState

# The child that each kind of wrapper puts the original under.
_ORIGINALS = {
    "peft.peft_model.PeftModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "peft.tuners.tuners_utils.BaseTunerLayer": "base_layer",
    "peft.utils.other.AuxiliaryTrainingWrapper": "original_module",
}
_OF_LAYERS = ("base_layer", "original_module")

# Not configuration: a cache, where the layer is, what tells how it was made, and what counts on (AdaMSS).
_INCIDENTAL = frozenset({
    "_caches", "kwargs", "device_mesh", "tp_layer", "other_param_names",
    "exp_avg_ipt_A", "exp_avg_ipt_B", "exp_avg_unc_A", "exp_avg_unc_B",
})  # fmt: skip
_RANK_ALLOCATOR = "peft.tuners.adalora.layer.RankAllocator"
_PLAIN = (type(None), bool, int, float, complex, str)


@functools.cache
def _original(cls: type) -> str | None:
    """Return the attribute under which a wrapper of peft holds what it wraps, or `None` for any other class."""
    names = (class_name(base) for base in cls.__mro__ if base.__module__.startswith("peft."))
    return next((_ORIGINALS[name] for name in names if name in _ORIGINALS), None)


def is_adapter_layer(module: nn.Module) -> bool:
    """Tell whether a module is a layer that holds adapters beside an original one."""
    return _original_of(module) in _OF_LAYERS


def _original_of(module: nn.Module) -> str | None:
    cls: type = type(module)  # mypy takes no class of classes for hashable
    return _original(cls)


def base_places(module: nn.Module) -> Iterator[tuple[str, str, bool]]:
    """Yield each submodule's canonical path, its path in the model without adapters, and whether it is part of one."""
    yield from _base_places(module, "", "", False)


def _base_places(
    module: nn.Module, path: str, base_path: str, within: bool
) -> Iterator[tuple[str, str, bool]]:
    module = unwrapped(module)
    yield path, base_path, within
    original = _original_of(module)
    holds_adapters = is_adapter_layer(module)
    for name, child in module._modules.items():
        if child is None:
            continue
        if name == original:
            yield from _base_places(child, joined(path, name), base_path, within)
        else:
            inside = within or holds_adapters
            yield from _base_places(child, joined(path, name), joined(base_path, name), inside)


def refuse_merged(module: nn.Module, scope: str) -> None:
    """Raise `UnsupportedState` for adapters that are added into the base: it isn't the base then, nor is it trained."""
    merged = [
        path
        for path, child in walk(module, scope)
        if is_adapter_layer(child) and getattr(child, "merged_adapters", None)
    ]
    if merged:
        raise UnsupportedState(
            "adapters are merged into the base", code="capture.merged_adapters", where=f"{scope} {merged[0]}",
            found=f"{len(merged)} layers with merged adapters", hint="call `unmerge_adapter()` first",
        )  # fmt: skip


def refuse_hidden_state(module: nn.Module, scope: str, keepers: Iterable[object]) -> None:
    """Raise `UnsupportedState` for what adapters count on outside of parameters and buffers, and nobody keeps.

    Args:
        module: The model.
        scope: What it is, for messages.
        keepers: The components. One that holds such state in an attribute, or its layer or tuner, answers for it.
    """
    held = {id(value) for keeper in keepers for value in getattr(keeper, "__dict__", {}).values()}
    tuners: list[tuple[str, nn.Module]] = []
    for path, child in walk(module, scope):
        original = _original_of(child)
        if original == "model":
            tuners.append((f"{path}.", child))
        around = {id(tuner) for prefix, tuner in tuners if path.startswith(prefix)}
        for name, value in vars(child).items() if original is not None else ():
            if name in _OF_EVERY_MODULE or not _counts_on(value) or {id(value), id(child), *around} & held:
                continue
            raise UnsupportedState(
                "adapters keep state outside of parameters and buffers, which peft doesn't save",
                code="capture.hidden_state", where=f"{scope} {joined(path, name)}", found=type_name(value),
                hint="hand in a component that saves it, and holds the tuner (`model.base_model`) in an attribute",
            )  # fmt: skip


def _counts_on(value: Any) -> bool:
    if class_name(type(value)) == _RANK_ALLOCATOR:
        return bool(value.exp_avg_ipt or value.peft_config.rank_pattern)
    return isinstance(value, dict | list) and _holds_floats(value)


def _holds_floats(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_floats, value.values() if isinstance(value, dict) else value))
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def configuration_of(module: nn.Module, scope: str, *, everywhere: bool) -> dict[str, Any] | None:
    """Take down what a module's adapters compute with besides tensors, by path and attribute.

    Args:
        module: The module.
        scope: What it is, for messages.
        everywhere: Beside peft's layers, also the plain attributes of each module that holds a trainable parameter
            itself (a LoRA layer of one's own), and the rate of every dropout.

    Returns:
        A dictionary of trees; `None` if it is empty and `everywhere` is false.
    """
    found: dict[str, Any] = {}
    layers: list[str] = []
    for path, child in walk(module, scope):
        if is_adapter_layer(child):
            layers.append(path)
            found[path] = _attributes(child, hidden=True)
        elif isinstance(child, nn.modules.dropout._DropoutNd):
            if everywhere or any(path.startswith(f"{layer}.") for layer in layers):
                found[path] = {"p": child.p}
        elif everywhere and any(
            parameter is not None and parameter.requires_grad for parameter in child._parameters.values()
        ):
            found[path] = _attributes(child, hidden=False)
    found = {path: attributes for path, attributes in found.items() if attributes}
    return found if found or everywhere else None


def _attributes(module: nn.Module, *, hidden: bool) -> dict[str, Any]:
    """Return the attributes of a module that are plain values, without those that every module has."""
    return {
        name: _plain(value)
        for name, value in sorted(vars(module).items())
        if name not in _OF_EVERY_MODULE
        and name not in _INCIDENTAL
        and (hidden or not name.startswith("_"))
        and _is_plain(value)
    }


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN or isinstance(value, torch.dtype):
        return True
    if type(value) in (list, tuple, set, frozenset):
        return all(_is_plain(item) for item in value)
    if type(value) is dict:
        return all(type(key) in _PLAIN for key in value) and all(_is_named(item) for item in value.values())
    return False


def _is_named(value: Any) -> bool:
    """Tell whether a value of a table by adapter can be taken down: indices, or a variant of LoRA, by its class."""
    return _is_plain(value) or _is_indices(value) or type_name(value).startswith("peft.")


def _is_indices(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_plain(value) and not value.is_floating_point()


def _plain(value: Any) -> Any:
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_plain(item) for item in value)
    if type(value) is dict:
        return {key: _plain(item) if _is_plain(item) else _described(item) for key, item in value.items()}
    return value


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type_name(value)
    captured = capture_tensor(value.detach().cpu().contiguous(), "indices")
    return f"{value.dtype} {list(value.shape)} {tree_digest(captured)[:16]}"
