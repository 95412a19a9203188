"""An optimizer that is asked for its state whole, and held to it when it is loaded.

Its own `load_state_dict` does the work. Around most stands torch's, which casts state to the parameter's dtype and
replaces the groups, their dictionaries and the state, which schedulers and wrappers go on holding (torch 2.13). So
afterwards these are the objects again that they were, with the new content; state that torch's loading has cast is put
in as it was; attributes that a class is known not to save are set; and those that a record tells of must be what they
were then, or the restore is refused.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.owners import inner_optimizers
from segue._record.tree import same
from segue.errors import ABSENT

Group = dict[str, Any]


class Asked:
    """An optimizer with `state_dict` and `load_state_dict`, and what it keeps beside them.

    Args:
        asked: The optimizer.
        kept: Names of attributes that are state, and that it doesn't save.
        told: Tells what the attributes are now that a record tells of, by path.
    """

    def __init__(self, asked: Any, kept: tuple[str, ...], told: Callable[[], Mapping[str, Any]]) -> None:
        self.asked = asked
        self._kept = kept
        self._told = told

    def state_dict(self) -> dict[str, Any]:
        """Return what it saves, and what is kept and told beside."""
        kept = {name: vars(self.asked)[name] for name in self._kept if name in vars(self.asked)}
        return state_with(self.asked.state_dict(), kept, dict(self._told()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let it load, and put right what its loading got wrong."""
        saved, optimizers = state["saved"], _like_torchs(self.asked)
        with _as_one_was(optimizers):
            self.asked.load_state_dict(saved)
        _put_what_was_cast(self.asked, optimizers, saved)
        for name, value in state["kept"].items():
            setattr(self.asked, name, value)

    def advice(self, given: dict[str, Any], now: dict[str, Any]) -> str | None:
        """Return what to do about attributes that did not come back; `None` if it is not these."""
        lost = [path for path, tree in given["told"].items() if not same(tree, now["told"].get(path, ABSENT))]
        if not lost:
            return None
        return f"its `load_state_dict` does not put back {', '.join(lost)}; register what is state with `segue.StateOf`"


def state_with(saved: Any, kept: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return what an `Asked` loads."""
    return {"saved": saved, "kept": kept, "told": told}


def _like_torchs(value: Any) -> list[Any]:
    """Return an object and all in it that have groups and state as torch's optimizers have them."""
    return [
        each
        for each in [value, *inner_optimizers(value).values()]
        if isinstance(getattr(each, "param_groups", None), list)
        and isinstance(getattr(each, "state", None), dict)
        and all(isinstance(group, dict) and "params" in group for group in each.param_groups)
    ]


@contextlib.contextmanager
def _as_one_was(optimizers: list[Any]) -> Iterator[None]:
    """Let groups, their dictionaries and state be the same objects afterwards as before."""
    before = [(each, each.param_groups, list(each.param_groups), each.state) for each in optimizers]
    try:
        yield
    finally:
        for optimizer, groups, members, state in before:
            _link_groups(optimizer, groups, members)
            _link_state(optimizer, state)


def _link_state(optimizer: Any, state: dict[Any, Any]) -> None:
    now = optimizer.state
    if "state" in vars(optimizer) and now is not state and type(now) is type(state):
        _refill(state, dict(now))
        optimizer.state = state


def _link_groups(optimizer: Any, groups: list[Group], members: list[Group]) -> None:
    now = optimizer.param_groups
    if "param_groups" not in vars(optimizer) or now is groups or not _are_of_same_members(members, now):
        return
    filled: set[int] = set()
    for old, new in zip(members, now, strict=True):
        if old is not new:
            _refill(old, {key: _filled(old.get(key), value, filled) for key, value in new.items()})
    groups[:] = members
    optimizer.param_groups = groups


def _are_of_same_members(before: list[Group], now: list[Group]) -> bool:
    return [[id(each) for each in group["params"]] for group in before] == [
        [id(each) for each in group["params"]] for group in now
    ]


def _refill(holder: dict[Any, Any], values: dict[Any, Any]) -> None:
    holder.clear()
    holder.update(values)


def _filled(old: Any, new: Any, filled: set[int]) -> Any:
    """Fill a tensor option, which compiled steps and schedulers hold; one that stands in two groups only once."""
    fits = (
        type(old) is type(new) is torch.Tensor
        and (old.dtype, old.shape, old.stride(), old.device)
        == (new.dtype, new.shape, new.stride(), new.device)
        and not (old.requires_grad or old.is_inference())
    )
    if not fits or (id(old) in filled and not torch.equal(old, new)):
        return new
    filled.add(id(old))
    with torch.no_grad():
        return old.copy_(new)


def _put_what_was_cast(value: Any, optimizers: list[Any], saved: Any) -> None:
    """Put in state in torch's own form as it was saved, where loading made it another type, dtype or shape.

    It is found in what the object saves now by being the very dictionaries that the optimizer holds.
    """
    for path, packed in _packed(value.state_dict(), ()):
        recorded = _at(saved, path)
        for optimizer in optimizers:
            members = _members(optimizer)
            if _is_form_of(packed, optimizer, members) and isinstance(recorded, dict):
                _put(optimizer, members, recorded.get("state"))


def _packed(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    if isinstance(tree, dict):
        if isinstance(tree.get("state"), dict) and isinstance(tree.get("param_groups"), list):
            yield path, tree
        items: Any = tree.items()
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        return
    for key, item in items:
        yield from _packed(item, (*path, key))


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _members(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters of an optimizer as torch counts them: each once (torch 2.13)."""
    return list({id(p): p for group in optimizer.param_groups for p in group["params"]}.values())


def _is_form_of(packed: dict[str, Any], optimizer: Any, members: list[torch.Tensor]) -> bool:
    slots = packed["state"]
    return bool(slots) and all(
        type(index) is int and index < len(members) and own is optimizer.state.get(members[index], ABSENT)
        for index, own in slots.items()
    )


def _put(optimizer: Any, members: list[torch.Tensor], state: Any) -> None:
    for index, slots in state.items() if isinstance(state, dict) else ():
        if type(index) is not int or not 0 <= index < len(members) or not isinstance(slots, dict):
            continue
        parameter = members[index]
        live = optimizer.state.get(parameter)
        for slot, value in slots.items() if isinstance(live, dict) else ():
            if not _are_alike(live.get(slot, ABSENT), value):
                live[slot] = _on_device(value, parameter.device)


def _are_alike(live: Any, value: Any) -> bool:
    """Tell whether two values are of one structure, types and layouts; their bits are compared later."""
    if type(live) is not type(value):
        return False
    if isinstance(value, torch.Tensor):
        return bool((live.dtype, live.shape) == (value.dtype, value.shape))
    if isinstance(value, dict):
        return live.keys() == value.keys() and all(_are_alike(live[key], item) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        bounds = [each.maxlen if isinstance(each, deque) else None for each in (live, value)]
        return bounds[0] == bounds[1] and len(live) == len(value) and all(map(_are_alike, live, value))
    return not isinstance(value, str | int | float | bool) or live == value


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(_on_device(item, device) for item in value)
    if type(value) is deque:
        return deque((_on_device(item, device) for item in value), value.maxlen)
    if type(value) is dict:
        return {key: _on_device(item, device) for key, item in value.items()}
    return value


def is_initialised(optimizer: object) -> bool:
    """Tell whether an optimizer of torch was made by torch's own constructor, so that its step hooks run."""
    return isinstance(optimizer, Optimizer) and "_optimizer_step_post_hooks" in vars(optimizer)
