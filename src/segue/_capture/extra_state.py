"""What modules say by `get_extra_state`, and can only be told by `set_extra_state`.

Wish: it comes back as it was, and a module that refuses it leaves everything unchanged. torch calls `set_extra_state` when
a module's tensors have been loaded, so that it may derive from them (torch 2.13); but what can refuse has to be asked
before anything is written. So it is called twice: first among the objects that can only be asked, where it is read back and
compared, and can be undone; and again when the tensors are there. Should that write to tensors, they are filled once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from segue._capture.naming import joined, walk
from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._capture.writes import ObjectWrite, Write, run_all
from segue._record.sections import ComponentRecord
from segue._record.tree import thaw
from segue.errors import ContractMismatch, Finding, UnsupportedState

ASPECT = "extra_state"


class ExtraState:
    """One module, as an object that can only be asked: a `Component`."""

    def __init__(self, module: nn.Module) -> None:
        self.asked = module

    def capture(self) -> Any:
        return self.asked.get_extra_state()

    def check(self, state: Any) -> Collection[str]:
        return ()

    def restore(self, state: Any) -> None:
        self.asked.set_extra_state(state)


def has_extra_state(module: nn.Module) -> bool:
    """Tell whether a module has state of its own making; torch looks at the class alone, too (torch 2.13)."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def extra_states(places: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """Return the submodules that have extra state, each under the first of its paths in sorted order."""
    found: dict[int, tuple[str, nn.Module]] = {}
    for path, child in places:
        if has_extra_state(child):
            known = found.setdefault(id(child), (path, child))
            found[id(child)] = min(known, (path, child), key=lambda item: item[0])
    return dict(sorted(found.values(), key=lambda item: item[0]))


def capture_extra(module: nn.Module, scope: str) -> dict[str, Any] | None:
    """Copy what submodules say by `get_extra_state`, by path; `None` where none says anything.

    Raises:
        UnsupportedState: If it has no exact encoding, or can't be told by `set_extra_state`.
    """
    children = extra_states(walk(module, scope))
    for path, child in children.items():
        if type(child).set_extra_state is nn.Module.set_extra_state:
            raise UnsupportedState(
                "a module with `get_extra_state` has no `set_extra_state`: what it says could not be told again",
                where=f"{scope} {path}", found=type_name(child), hint="give it a `set_extra_state`",
            )  # fmt: skip
    return {
        path: freeze(child.get_extra_state(), f"{scope} {joined(path, 'extra_state')}")
        for path, child in children.items()
    } or None


def check_extra(
    record: Mapping[str, Any] | None,
    places: Iterable[tuple[str, nn.Module]],
    scope: str,
    paths: Collection[str],
) -> Iterator[Finding]:
    """Yield the submodules that have extra state on one side only.

    Args:
        record: From `capture_extra`.
        places: The live submodules by path, from `walk`.
        scope: What it is, for codes.
        paths: The submodules that both have; others show elsewhere.
    """
    recorded = (record or {}).keys()
    for path in sorted((recorded ^ extra_states(places).keys()) & set(paths)):
        is_recorded = path in recorded
        sides = ("present", "absent") if is_recorded else ("absent", "present")
        yield Finding(
            ContractMismatch, joined(f"{scope}.{ASPECT}", path), "a module has extra state on one side only", f"{scope} {path}",
            *sides, admissible=True, when_accepted="drops it" if is_recorded else "leaves it as the program made it",
        )  # fmt: skip


def extra_objects(
    record: Mapping[str, Any] | None, module: nn.Module, scope: str
) -> dict[str, tuple[ComponentRecord, ExtraState]]:
    """Return what the modules that have extra state on both sides are to be told, and the modules, by scope."""
    children = extra_states(walk(module, scope)) if record else {}
    return {
        joined(f"{scope}.{ASPECT}", path): (
            ComponentRecord("component", type_name(children[path]), None, tree),
            ExtraState(children[path]),
        )
        for path, tree in (record or {}).items()
        if path in children
    }


def plan_extra(
    record: Mapping[str, Any] | None, module: nn.Module, scope: str, tensor_writes: list[Write]
) -> Iterator[Write]:
    """Plan to tell modules again, when the tensors have been written.

    Args:
        record: From `capture_extra`.
        module: The live module.
        scope: What it is, for messages.
        tensor_writes: What fills its tensors; run again if one is written to.
    """
    for told, (state, child) in extra_objects(record, module, scope).items():
        yield ObjectWrite(told, _tell_again(state.tree, child, module, tensor_writes))


def _tell_again(tree: Any, child: ExtraState, module: nn.Module, tensor_writes: list[Write]) -> Any:
    def assign() -> None:
        before = _versions(module)
        child.restore(thaw(tree))
        if _versions(module) != before:
            run_all(tensor_writes)

    return assign


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    return [
        (id(tensor), tensor._version)
        for tensor in (*module.parameters(), *module.buffers())
        if not tensor.is_inference()
    ]
