"""Which modules run compiled, and by what: compiled code and eager code differ in last bits (torch 2.13)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from segue._capture.naming import joined, places


def compiled_in(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the backend of each compiled module by its canonical path.

    Args:
        modules: The registered modules by name.
    """
    if (
        "torch._dynamo.eval_frame" not in sys.modules
    ):  # nothing is compiled without it, and importing takes seconds
        return {}
    return {
        joined(name, path): backend
        for name, module in modules.items()
        for path, inner, wrappers in places(module, name)
        for child in (*(wrapper for wrapper, _ in wrappers), inner)
        for backend in _backends(child)
    }


def _backends(module: nn.Module) -> Iterator[str]:
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    if isinstance(module, dynamo.OptimizedModule):
        yield _name_of(getattr(module.dynamo_ctx, "callback", None))
    call = vars(module).get("_compiled_call_impl")  # of `module.compile()`, in place
    if call is not None:
        yield _name_of(_callback_of(call))


def _callback_of(call: Any) -> Any:
    """Return what a compiled function hands frames to: its context is a variable that it closes over (torch 2.13)."""
    names = getattr(getattr(call, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(call, "__closure__", None) or (), strict=False))
    return cells["callback"].cell_contents if "callback" in cells else None


def _name_of(callback: Any) -> str:
    """Name the backend inside the wrappers that dynamo puts around it."""
    while callback is not None:
        inner = getattr(callback, "_torchdynamo_orig_backend", None)
        if inner is None:
            break
        callback = inner
    name = getattr(callback, "compiler_name", None) or getattr(callback, "__name__", None)
    return str(name) if name else "unknown"
