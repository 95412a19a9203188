"""What a module computes with besides tensors, so far as it decides what an adapter means.

Tensors of one shape can compute something else: a scale, a rate of dropout, which adapter is active. These are plain
attributes, in no state dict (peft 0.21). They are taken down, compared bit for bit, and never set: how a program builds
its model is its own. Indices that peft keeps in attributes are compared by digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.adapters import OF_EVERY_MODULE
from segue._capture.extra_state import has_extra_state
from segue._capture.naming import walk
from segue._capture.staging import capture_tensor, is_plain, type_name
from segue._capture.wrappers import is_adapter_layer
from segue._record.digest import tree_digest
from segue._record.tree import same
from segue.errors import ABSENT, ContractMismatch, Finding

_NUMBERS = (bool, int, float, complex)
_PLAIN = (type(None), str, *_NUMBERS)
# Not configuration: a cache, where the layer is, what tells how it was made, and what counts on (AdaMSS).
_INCIDENTAL = frozenset({
    "_caches", "kwargs", "device_mesh", "tp_layer", "other_param_names",
    "exp_avg_ipt_A", "exp_avg_ipt_B", "exp_avg_unc_A", "exp_avg_unc_B",
})  # fmt: skip


def configuration_of(module: nn.Module, scope: str, *, everywhere: bool) -> dict[str, Any] | None:
    """Take down what a module's adapters compute with besides tensors, by path and attribute.

    Args:
        module: The module.
        scope: What it is, for messages.
        everywhere: Beside peft's layers, also the plain attributes of each module that holds a trainable parameter
            itself; the numbers among those of the modules around it, up to the first that holds something frozen too (a
            layer of one's own: `scale` beside `A`, `B` and the original); and the rate of every dropout.

    Returns:
        A dictionary of trees; `None` if it is empty and `everywhere` is false.
    """
    children = dict(walk(module, scope))
    around = _around_trained(children) if everywhere else frozenset()
    found: dict[str, Any] = {}
    layers: list[str] = []
    for path, child in children.items():
        if is_adapter_layer(child):
            layers.append(path)
            found[path] = _attributes(child, hidden=True)
        elif isinstance(child, nn.modules.dropout._DropoutNd):
            if everywhere or any(path.startswith(f"{layer}.") for layer in layers):
                found[path] = {"p": child.p}
        elif everywhere and _holds_trained(child):
            found[path] = _attributes(child, hidden=False, state=_told_as_state(child))
        elif path in around:
            found[path] = {
                name: value
                for name, value in _attributes(child, hidden=False, state=_told_as_state(child)).items()
                if type(value) in _NUMBERS
            }
    found = {path: attributes for path, attributes in found.items() if attributes}
    return found if found or everywhere else None


def _holds_trained(module: nn.Module) -> bool:
    return any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values())


def _around_trained(children: Mapping[str, nn.Module]) -> frozenset[str]:
    """Return the paths of the modules around trained ones, each up to the first that holds something frozen too."""
    mixed = {
        path for path, child in children.items() if any(not each.requires_grad for each in child.parameters())
    }
    found: set[str] = set()
    for path in (path for path, child in children.items() if _holds_trained(child)):
        while path and path not in mixed:
            path = path.rpartition(".")[0]
            found.add(path)
    return frozenset(found)


def _told_as_state(module: nn.Module) -> frozenset[str]:
    """Return the attributes that a module with `get_extra_state` tells there: they are restored, and not compared."""
    if not has_extra_state(module):
        return frozenset()
    told = module.get_extra_state()
    names = vars(module) if not isinstance(told, dict) else [key for key in told if isinstance(key, str)]
    return frozenset(names)


def _attributes(module: nn.Module, *, hidden: bool, state: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of a module that are plain values, without those that every module has."""
    return {
        name: _plain(value)
        for name, value in sorted(vars(module).items())
        if name not in OF_EVERY_MODULE
        and name not in _INCIDENTAL
        and name not in state
        and (hidden or not name.startswith("_"))
        and _is_plain(value)
    }


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


def configuration_differences(
    record: Mapping[str, Any], live: Mapping[str, Any], paths: Collection[str], scope: str
) -> Iterator[Finding]:
    """Yield what would be computed otherwise, once for all modules where it differs in one setting.

    Args:
        record: What was taken down.
        live: What the program has.
        paths: The modules that both have; others show elsewhere.
        scope: What it is, for codes.
    """
    for name, places in sorted(_differing(record, live, paths).items()):
        path, before, now = places[0]
        where = f"{scope} {path}" + (f" and {len(places) - 1} other modules" if len(places) > 1 else "")
        yield Finding(
            ContractMismatch, f"{scope}.configuration.{name}", "it would compute with another setting", where,
            _setting(name, before), _setting(name, now), "build the adapter as it was when it was captured",
            admissible=True,
        )  # fmt: skip


def _differing(
    record: Mapping[str, Any], live: Mapping[str, Any], paths: Collection[str]
) -> dict[str, list[tuple[str, Any, Any]]]:
    """Return by attribute where it differs: path and both sides.

    A dropout of rate 0 is built as no dropout by some, so what is taken down on one side only differs too.
    """
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    for path in sorted((record.keys() | live.keys()) & set(paths)):
        ours, theirs = record.get(path, {}), live.get(path, {})
        for name in ours.keys() | theirs.keys():
            before, now = ours.get(name, ABSENT), theirs.get(name, ABSENT)
            if not same_setting(before, now):
                found.setdefault(name, []).append((path, before, now))
    return found


def same_setting(left: Any, right: Any) -> bool:
    """Tell whether two settings compute the same: 8 and 8.0 do, and differ in nothing that a tensor would see."""
    if {type(left), type(right)} == {int, float}:
        return bool(left == right) and same(float(left), float(right))
    if type(left) is dict and type(right) is dict and left.keys() == right.keys():
        return all(same_setting(item, right[key]) for key, item in left.items())
    return same(left, right)


def _setting(name: str, value: Any) -> str:
    return "absent" if value is ABSENT else f"{name}={value!r}"
