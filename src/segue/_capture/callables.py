"""Functions that decide a schedule: what they are, since their code can't be stored.

A plain function gets a fingerprint of its code, defaults and closed-over values; an object gets its class name
beside its attributes, which are state. What could hide state is refused: torch stores `None` for a function and
accepts any other in its place (torch 2.13).
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

from segue._capture.plain import freeze
from segue._capture.staging import class_name
from segue._record.tree import encode, thaw
from segue.errors import UnsupportedState


def fingerprint(function: Any, where: str, above: tuple[int, ...] = ()) -> dict[str, Any]:
    """Describe a callable so that another one gets another description.

    The module is left out: it is `__main__` or not, depending on how a program is started.

    Raises:
        UnsupportedState: If it may hold state that can't be seen.
    """
    if id(function) in above:
        return {"recursion": len(above) - above.index(id(function))}
    if isinstance(function, functools.partial):
        return {
            "partial": fingerprint(function.func, where, (*above, id(function))),
            "arguments": freeze(list(function.args), f"{where} arguments"),
            "keywords": freeze(dict(function.keywords), f"{where} keywords"),
        }
    if isinstance(function, types.FunctionType):
        return _function(function, where, (*above, id(function)))
    if isinstance(function, types.BuiltinFunctionType) and isinstance(
        function.__self__, types.ModuleType | None
    ):
        return {"builtin": f"{function.__module__}.{function.__qualname__}"}
    if isinstance(function, types.MethodType | types.BuiltinFunctionType):
        raise UnsupportedState(
            "a bound method hides the state of its object", where=where, found=str(function.__qualname__),
            hint="use an object with `__call__`: its attributes are captured",
        )  # fmt: skip
    return {"class": type(function).__qualname__}


def _function(function: types.FunctionType, where: str, above: tuple[int, ...]) -> dict[str, Any]:
    closure: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        closure[name] = _closed_over(cell, f"{where} closed-over {name}", above)
    # Some count their calls in an attribute of their own; `functools.wraps` leaves one that is closed over already.
    attributes = {
        name: _held(value, f"{where} attribute {name}", above)
        for name, value in vars(function).items()
        if name != "__wrapped__"
    }
    return {
        "function": function.__qualname__,
        "code": _code_digest(function.__code__),
        "defaults": freeze(list(function.__defaults__ or ()), f"{where} defaults"),
        "keyword_defaults": freeze(dict(function.__kwdefaults__ or {}), f"{where} keyword defaults"),
        "closure": closure,
        **({"attributes": attributes} if attributes else {}),
    }


def _closed_over(cell: Any, where: str, above: tuple[int, ...]) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:
        return {"empty": True}
    return _held(value, where, above)


def _held(value: Any, where: str, above: tuple[int, ...]) -> Any:
    """Describe what a function holds: plain values, or functions that hold such; an object would hide its state."""
    if isinstance(_applied(value), types.FunctionType | types.BuiltinFunctionType):
        return fingerprint(value, where, above)
    try:
        return freeze(value, where)
    except UnsupportedState as error:
        error.hint = "close over plain values, or use an object with `__call__`: its attributes are captured"
        raise


def _applied(function: Any) -> Any:
    """Return what a partial applies in the end; any other value itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _code_digest(code: types.CodeType) -> str:
    """Digest what a code object does; file names and line numbers aside."""
    hasher = hashlib.sha256(code.co_code)
    hasher.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        text = _code_digest(constant) if isinstance(constant, types.CodeType) else _constant(constant)
        hasher.update(text.encode())
    return hasher.hexdigest()


def _constant(constant: Any) -> str:
    # A frozenset constant has no order of its own, and PYTHONHASHSEED must not show.
    return repr(encode(constant, lambda path, blob: "")) if constant is not Ellipsis else "..."


def callable_state(function: Any, where: str) -> dict[str, Any] | None:
    """Copy the attributes of a callable object; `None` for functions, which have none that count.

    Raises:
        UnsupportedState: If an attribute can't be kept, or it uses `__slots__`.
    """
    function = _applied(function)
    if isinstance(function, types.FunctionType | types.BuiltinFunctionType):
        return None
    if not hasattr(function, "__dict__") or any(
        getattr(cls, "__slots__", ()) for cls in type(function).__mro__
    ):
        raise UnsupportedState(
            "a callable with `__slots__` hides its state", where=where, found=class_name(type(function))
        )
    state: dict[str, Any] = freeze(dict(vars(function)), where)
    return state


def restore_callable_state(function: Any, state: dict[str, Any] | None) -> None:
    """Put attributes back: the inverse of `callable_state`."""
    if state is not None:
        attributes = vars(_applied(function))
        attributes.clear()
        attributes.update(thaw(state))
