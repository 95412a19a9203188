"""Adapters of peft, recognised by type: what is theirs, and what the base is called without them.

Some kinds keep tensors in neither parameters nor buffers. Indices say which elements a small tensor is about (SHiRA,
FourierFT): configuration. What counts on while it trains (the ranks of AdaLoRA and AdaMSS by their
importance) is state that peft itself never saves (peft 0.21): refused, unless a component keeps it.

peft is never imported here: its objects exist only where the program has imported it, and classes are known by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from segue._capture.naming import joined, places, walk
from segue._capture.staging import class_name, type_name
from segue._capture.wrappers import is_adapter_layer, original_of_peft, unwrapped
from segue.errors import UnsupportedState

_RANK_ALLOCATOR = "peft.tuners.adalora.layer.RankAllocator"

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""The attributes that every module has."""


def base_places(module: nn.Module) -> Iterator[tuple[str, str, bool]]:
    """Yield each submodule's canonical path, its path in the model without adapters, and whether it is part of one."""
    yield from _base_places(module, "", "", False)


def _base_places(
    module: nn.Module, path: str, base_path: str, within: bool
) -> Iterator[tuple[str, str, bool]]:
    module = unwrapped(module)
    yield path, base_path, within
    original = original_of_peft(module)
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
            found=f"{len(merged)} layers with merged adapters", hint="evaluate a merged copy instead: `unmerge_adapter()` "
            "leaves the base with other bits than it had, and with that it is stored from then on",
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
    for path, inside, child in _with_wrappers(module, scope):
        original = original_of_peft(child)
        if original == "model":
            tuners.append((inside, child))
        around = {id(tuner) for prefix, tuner in tuners if inside.startswith(prefix)}
        for name, value in vars(child).items() if original is not None else ():
            if name in OF_EVERY_MODULE or not _counts_on(value) or {id(value), id(child), *around} & held:
                continue
            raise UnsupportedState(
                "adapters keep state outside of parameters and buffers, which peft doesn't save",
                code="capture.hidden_state", where=f"{scope} {joined(path, name)}", found=type_name(value),
                hint="hand in a component that saves it, and holds the tuner (`model.base_model`) in an attribute",
            )  # fmt: skip


def _with_wrappers(module: nn.Module, scope: str) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield every module, wrappers too: as people reach it, and what the canonical names of all in it begin with."""
    for path, child, wrappers in places(module, scope):
        reached, inside = path, f"{path}." if path else ""
        for wrapper, attribute in wrappers:
            yield reached, inside, wrapper
            reached = joined(reached, attribute)
        yield reached, inside, child


def _counts_on(value: Any) -> bool:
    if class_name(type(value)) == _RANK_ALLOCATOR:
        return bool(value.exp_avg_ipt or value.peft_config.rank_pattern)
    return isinstance(value, dict | list) and _holds_floats(value)


def _holds_floats(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_floats, value.values() if isinstance(value, dict) else value))
    return isinstance(value, torch.Tensor) and value.is_floating_point()
