"""Functions that decide a schedule: what they are, since their code can't be stored.

A plain function gets a fingerprint of its code, its defaults, and of what it closes over and reads of globals (`held`); an
object gets its class and methods beside its attributes, which are state. What could hide state is refused: torch stores
`None` for a function and accepts any other in its place (torch 2.13).
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from segue._capture.deferred import deferring
from segue._capture.function_code import BUILTINS, applied
from segue._capture.generators import is_generator
from segue._capture.held import Describing
from segue._capture.plain import freeze
from segue._capture.registered import NOTHING
from segue._capture.staging import class_name
from segue._record.tree import thaw
from segue.errors import UnsupportedState

if TYPE_CHECKING:
    from segue._capture.description import References

_FUNCTIONS = (types.FunctionType, types.MethodType, functools._lru_cache_wrapper, *BUILTINS)


def fingerprint(function: Any, where: str, references: References = NOTHING) -> dict[str, Any]:
    """Describe a callable so that another one gets another description.

    The module is left out: it is `__main__` or not, depending on how a program is started.

    Args:
        function: The callable. It is not called.
        where: What it is called in messages.
        references: What is registered: state that is kept elsewhere, and only named here.

    Raises:
        UnsupportedState: If it may hold state that can't be seen.

    Cost:
        A copy of what it holds. Its bytecode is read once in a process.
    """
    with deferring(None):  # bytes are read at once
        return Describing(references).callable(function, where)


def callable_state(function: Any, where: str, references: References = NOTHING) -> dict[str, Any] | None:
    """Copy the attributes of a callable object; `None` for functions, which have none that count, and what is registered.

    Raises:
        UnsupportedState: If an attribute can't be kept, or it uses `__slots__`.
    """
    function = applied(function)
    if isinstance(function, _FUNCTIONS) or references.name(function) is not None:
        return None
    if not hasattr(function, "__dict__") or any(
        getattr(cls, "__slots__", ()) for cls in type(function).__mro__
    ):
        raise UnsupportedState(
            "a callable with `__slots__` hides its state", where=where, found=class_name(type(function))
        )
    own = {name: item for name, item in vars(function).items() if not is_stream(item, references)}
    state: dict[str, Any] = freeze(own, where)
    return state


def is_stream(value: object, references: References) -> bool:
    """Tell whether an attribute is a random generator that is captured by itself: no state of who holds it."""
    return is_generator(value) and references.name(value) is not None


def restore_callable_state(function: Any, state: dict[str, Any] | None) -> None:
    """Put attributes back: the inverse of `callable_state`."""
    function = applied(function)
    if state is not None and not isinstance(function, _FUNCTIONS):
        attributes = vars(function)
        streams = {name: item for name, item in attributes.items() if is_generator(item)}
        attributes.clear()
        attributes.update({**streams, **thaw(state)})
