"""What an object shows of itself without any code of its class being run: what is stored in it, and where.

`getattr` may run anything: properties, `__getattr__`, descriptors. Here only places are looked into that hold a value
as it is: the dictionary of the object, slots, the fields of named tuples, the dictionaries of its classes.
"""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, defaultdict
from typing import Any, Final

from segue.errors import ABSENT

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # of `type.__flags__`; a `class` statement makes the first kind


class _Computed:
    """The type of `COMPUTED`."""

    def __repr__(self) -> str:
        return "computed"


COMPUTED: Final = _Computed()
"""Stands for an attribute that code makes as it is asked for: a method, a property."""


def is_a(value: object, kinds: Any) -> bool:
    """Tell whether a value is of a class by its type: `isinstance` asks `__class__`, which proxies answer with code."""
    return issubclass(type(value), kinds)


def stored(value: Any, name: str) -> Any:
    """Return an attribute of an object, class or module as it is stored there.

    Returns:
        The value; `COMPUTED` if only code could tell it, `ABSENT` if it is not stored anywhere.
    """
    if is_a(value, types.ModuleType):
        return vars(value).get(name, ABSENT)
    if own_access(type(value)) is not None:
        return COMPUTED
    if is_a(value, type):
        return _stored_in_class(value, name)
    held = _in_classes(type(value), name)
    if isinstance(held, types.MemberDescriptorType):
        return _in_slot(held, value)
    if name in fields_of(value):
        return fields_of(value)[name]
    if held is not ABSENT and _is_descriptor(held, "__set__", "__delete__"):
        return COMPUTED
    own = attributes_of(value)
    if dict.__contains__(own, name):
        return dict.__getitem__(own, name)
    if isinstance(held, staticmethod):
        return held.__func__
    if isinstance(held, classmethod) and isinstance(held.__func__, types.FunctionType):
        return types.MethodType(held.__func__, type(value))
    return COMPUTED if held is not ABSENT and _is_descriptor(held, "__get__") else held


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a named tuple; those of anything else are none."""
    if not is_a(value, tuple):
        return {}
    return dict(zip(getattr(type(value), "_fields", ()), tuple.__iter__(value), strict=False))


def method_of(cls: type, name: str) -> types.FunctionType | None:
    """Return the function that a class has for a method, or for reading a property; `None` if it has none in Python."""
    held = _in_classes(cls, name)
    if isinstance(held, property):
        held = held.fget
    elif isinstance(held, classmethod | staticmethod):
        held = held.__func__
    return held if isinstance(held, types.FunctionType) else None


def attributes_of(value: object) -> dict[str, Any]:
    """Return the dictionary of an object, or an empty one."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def all_attributes(value: object) -> dict[str, Any]:
    """Return what an object has in its dictionary and in slots, those that are Python's own aside."""
    own = attributes_of(value)
    found = {} if own is value else {name: item for name, item in dict.items(own) if isinstance(name, str)}
    for cls in type(value).__mro__ if shows_all(value) else ():
        for name, held in vars(cls).items():
            if isinstance(held, types.MemberDescriptorType):
                found[name] = _in_slot(held, value)
    return {
        name: item
        for name, item in found.items()
        if item is not ABSENT and not (name.startswith("__") and name.endswith("__"))
    }


def is_dict_of_python(cls: type) -> bool:
    """Tell whether a class is derived from `dict` by Python code alone, and lists its items as `dict` does."""
    written = [base for base in cls.__mro__ if base not in (dict, OrderedDict, defaultdict, object)]
    lists = _in_classes(cls, "items")
    return all(base.__flags__ & _HEAP_TYPE for base in written) and lists in (dict.items, OrderedDict.items)


def falls_back(cls: type) -> bool:
    """Tell whether a class has code for attributes that are stored nowhere."""
    return _in_classes(cls, "__getattr__") is not ABSENT


def own_access(cls: type) -> type | None:
    """Return the class whose Python code all attributes of an object go through; `None` if there is none."""
    found = next(base for base in cls.__mro__ if "__getattribute__" in vars(base))
    return found if isinstance(vars(found)["__getattribute__"], types.FunctionType) else None


def shows_all(value: object) -> bool:
    """Tell whether an object is of a class written in Python, whose state is in its attributes."""
    return type(value) in (types.SimpleNamespace, object) or all(
        _is_written_in_python(cls) for cls in type(value).__mro__ if cls is not object
    )


def _is_written_in_python(cls: type) -> bool:
    # A type written in C holds its state in memory of its own: beyond that of its base, and of a dictionary, of weak
    # references and slots.
    own_bytes = cls.__basicsize__ - (cls.__base__ or object).__basicsize__
    slots = vars(cls).get("__slots__", ())
    words = 2 + (1 if isinstance(slots, str) else len(slots))
    return bool(cls.__flags__ & _HEAP_TYPE) and not cls.__flags__ & _IMMUTABLE_TYPE and own_bytes <= 8 * words


def _in_classes(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return ABSENT


def _stored_in_class(cls: type, name: str) -> Any:
    if isinstance(cls, enum.EnumMeta) and name in cls.__members__:
        return cls.__members__[name]
    held = _in_classes(cls, name)
    if isinstance(held, types.FunctionType):
        return held
    if isinstance(held, staticmethod):
        return held.__func__
    if isinstance(held, classmethod) and isinstance(held.__func__, types.FunctionType):
        return types.MethodType(held.__func__, cls)
    return COMPUTED if held is not ABSENT and _is_descriptor(held, "__get__") else held


def _in_slot(slot: types.MemberDescriptorType, value: object) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return ABSENT


def _is_descriptor(held: object, *methods: str) -> bool:
    return any(hasattr(type(held), method) for method in methods)
