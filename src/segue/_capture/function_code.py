"""What a function is, beside what it holds: a digest of its code, and where it comes from."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import numpy as np

from segue._capture.visible import stored
from segue._record.tree import encode

BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)
"""Functions that are not written in Python."""


def python_version() -> str:
    """Return the version of Python whose bytecode functions have here."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def code_digest(code: types.CodeType) -> str:
    """Digest what a code object does; file names and line numbers aside."""
    hasher = hashlib.sha256(code.co_code)
    hasher.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        text = code_digest(constant) if isinstance(constant, types.CodeType) else _constant(constant)
        hasher.update(text.encode())
    return hasher.hexdigest()


def _constant(constant: Any) -> str:
    # A frozenset constant has no order of its own, and PYTHONHASHSEED must not show.
    return repr(encode(constant, lambda path, blob: "")) if constant is not Ellipsis else "..."


def exceptions_digest(code: types.CodeType) -> str | None:
    """Digest which instructions are tried, and where it goes on then; `None` if none are."""
    codes = [code]
    for each in codes:
        codes += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
    tables = [each.co_exceptiontable for each in codes]
    return hashlib.sha256(repr(tables).encode()).hexdigest() if any(tables) else None


def first_argument(function: types.FunctionType) -> str:
    """Return what a method calls its object."""
    return next(iter(function.__code__.co_varnames), "")


def applied(function: Any) -> Any:
    """Return what a partial applies in the end; any other value itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def builtin_name(function: Any) -> str:
    """Return the name of a function that is not written in Python, with that of its module."""
    if isinstance(function, np.ufunc):
        return f"numpy.{function.__name__}"
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", type).__module__
    return f"{module}.{function.__qualname__}"


def is_named(function: types.FunctionType) -> bool:
    """Tell whether a function is what its module has under its name."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        if not isinstance(found, types.ModuleType | type):
            return False
        found = stored(found, part)
    return found is function


def is_library_function(function: types.FunctionType) -> bool:
    """Tell whether a function belongs to an installed library, to Python or to segue."""
    return _is_library(function.__code__.co_filename)


def is_of_library(value: types.ModuleType | type) -> bool:
    """Tell whether a module or class belongs to an installed library, to Python or to segue."""
    module = sys.modules.get(value.__module__) if isinstance(value, type) else value
    if module is None:
        return False
    path = getattr(module, "__file__", None)
    return _is_library(path) if path else module.__name__ in sys.builtin_module_names


def is_library_path(path: str) -> bool:
    """Tell whether a source file belongs to an installed library, to Python or to segue."""
    return _is_library(path)


def _is_library(path: str) -> bool:
    if path.startswith("<"):
        return path.startswith("<frozen")
    is_installed = not _PACKAGES.isdisjoint(Path(path).parts)
    return is_installed or path.startswith(_library_roots())


_PACKAGES = frozenset({"site-packages", "dist-packages"})


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths, own = sysconfig.get_paths(), Path(__file__).resolve().parents[1]
    roots = [paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__), str(own)]
    return tuple(f"{root}{os.sep}" for root in dict.fromkeys(roots))
