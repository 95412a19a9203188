"""The typed encoding of plain Python state: a tree of containers, scalars, tensors and arrays, and its JSON form.

JSON alone would turn tuples into lists, int keys into strings, and has no infinity, no big integer for every
reader and no bytes. So each value that JSON doesn't have is an object with exactly one key, its tag:
`{"tuple": [...]}`, `{"map": [[key, value], ...]}`, `{"int": "1180591620717411303424"}`. A plain `dict` with string
keys is `{"dict": {...}}`, so that no data can be taken for a tag. Tensors and arrays are named, not embedded.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xxhash

from segue._record.composite import CAPTURED, CapturedSparse, CapturedSubclass, Composite, ConvertedTensor
from segue._record.embedded import embedded_as, embedded_named
from segue._record.quantized import QuantizedTensor
from segue._record.tensors import (
    DTYPE_NAMES,
    DTYPES,
    Blob,
    CapturedArray,
    CapturedTensor,
    MemoryBytes,
    same_bits,
)
from segue.errors import InvalidRecord

MAX_DEPTH = 64
MAX_NAME_BYTES = 1024
_SAFE_INT = 2**53
# A part is a string for a name or a position in a list, and an int for the position of a key that is no string:
# so the entries `{"0": a, 5: b}` can never get the same path.
Path = tuple[str | int, ...]
Json = Any

COMPOSITES: tuple[type[Composite], ...] = (CapturedSparse, CapturedSubclass, QuantizedTensor, ConvertedTensor)

SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range)


def blob_name(path: Path) -> str:
    """Name a blob by its path, parts joined by `/`; different paths never get the same name."""
    name = "/".join(_escaped(part) for part in path)
    if len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES - 64 and name.isprintable():
        return name
    return f"{path[0]}/~h{xxhash.xxh3_128_hexdigest(repr(path).encode())}"


def _escaped(part: str | int) -> str:
    return f"~k{part}" if isinstance(part, int) else part.replace("~", "~0").replace("/", "~1")


def key_part(index: int, key: Any) -> str | int:
    """Return the path part of a dictionary entry: the key itself, or its position where it is no string."""
    return key if type(key) is str else index


def shown_path(path: Path) -> str:
    """Render a path for people."""
    return "/".join(str(part) for part in path)


def encode(value: Any, name: Callable[[Path, Blob], str], path: Path = ()) -> Json:
    """Turn a tree into JSON values, naming each tensor and array by calling `name(path, blob)`.

    Raises:
        InvalidRecord: If the tree holds a type that has no encoding, or is nested deeper than 64. Capture refuses
            these first, with a better message.
    """
    if len(path) > MAX_DEPTH:
        raise InvalidRecord(
            "state is nested too deeply", code="record.depth", where=shown_path(path), expected=MAX_DEPTH
        )
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, CapturedTensor):
        return {"tensor": name(path, value)}
    if isinstance(value, CapturedArray):
        order = "F" if value.fortran else "C"
        return {"array": [name(path, value), value.dtype, list(value.shape), order]}
    if isinstance(value, Composite):
        parts = {part: encode(item, name, (*path, part)) for part, item in value.parts.items()}
        return {value.tag: [encode(value.description, _no_blobs, path), parts]}
    if kind in _ENCODERS:
        return _ENCODERS[kind](value)
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.str, _base64(value.tobytes())]}
    if kind in (list, tuple, deque, set, frozenset):
        return _encode_sequence(value, name, path)
    if kind in (dict, OrderedDict, Counter):
        return _encode_mapping(value, name, path)
    if (embedded := embedded_as(kind)) is not None:
        return {"own": [embedded.name, encode(embedded.take_apart(value), name, path)]}
    raise InvalidRecord(
        "this type has no exact encoding", code="record.type", where=shown_path(path), found=_type_name(kind)
    )


def _encode_sequence(value: Any, name: Callable[[Path, Blob], str], path: Path) -> Json:
    items = [encode(item, name, (*path, str(index))) for index, item in enumerate(value)]
    if type(value) is list:
        return items
    if type(value) is deque:
        return {"deque": [value.maxlen, items]}
    if type(value) is tuple:
        return {"tuple": items}
    # Sets have no order of their own, and PYTHONHASHSEED must not show in the bytes.
    return {type(value).__name__: sorted(items, key=repr)}


def _encode_mapping(value: dict[Any, Any], name: Callable[[Path, Blob], str], path: Path) -> Json:
    if type(value) is dict and all(type(key) is str and _is_utf8(key) for key in value):
        return {"dict": {key: encode(item, name, (*path, key)) for key, item in value.items()}}
    items = [
        [encode(key, name, (*path, index)), encode(item, name, (*path, key_part(index, key)))]
        for index, (key, item) in enumerate(value.items())
    ]
    return {{dict: "map", OrderedDict: "ordered", Counter: "counter"}[type(value)]: items}


def _encode_float(value: float) -> Json:
    if math.isfinite(value):
        return value
    return {"float": struct.pack(">d", value).hex()}


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _encode_str(value: str) -> Json:
    return value if _is_utf8(value) else {"str": _base64(value.encode("utf-8", "surrogatepass"))}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_ENCODERS: dict[type, Callable[[Any], Json]] = {
    int: lambda value: value if abs(value) < _SAFE_INT else {"int": hex(value)},
    float: _encode_float,
    str: _encode_str,
    complex: lambda value: {"complex": struct.pack(">dd", value.real, value.imag).hex()},
    bytes: lambda value: {"bytes": _base64(value)},
    bytearray: lambda value: {"bytearray": _base64(bytes(value))},
    range: lambda value: {
        "range": [encode(part, _no_blobs) for part in (value.start, value.stop, value.step)]
    },
    torch.dtype: lambda value: {"dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"device": str(value)},
    torch.Size: lambda value: {"size": list(value)},
}


def _no_blobs(path: Path, blob: Blob) -> str:
    raise InvalidRecord("a tensor can't stand here", code="record.type", where=shown_path(path))


def decode(json: Json, blob: Callable[[str], Blob], path: Path = ()) -> Any:
    """Turn JSON values back into a tree: the inverse of `encode`.

    Args:
        json: Parsed JSON, possibly hostile.
        blob: Finds a tensor, or the raw bytes of an array as a uint8 tensor, by name; raises `InvalidRecord`.
        path: Where in the whole this is, for messages.

    Raises:
        InvalidRecord: If anything isn't what `encode` writes.
    """
    if len(path) > 4 * MAX_DEPTH:
        raise _bad(path, "nested too deeply", json)
    kind = type(json)
    if json is None or kind in (bool, int, float, str):
        return json
    if kind is list:
        return [decode(item, blob, (*path, str(index))) for index, item in enumerate(json)]
    if kind is not dict or len(json) != 1:
        raise _bad(path, "not a typed value", json)
    [(tag, body)] = json.items()
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise _bad(path, "unknown tag", tag)
    try:
        return decoder(body, blob, path)
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        OverflowError,
        struct.error,
        RuntimeError,
    ) as error:
        raise _bad(path, f"malformed {tag}: {error}", body) from error


def _bad(path: Path, what: str, found: Any) -> InvalidRecord:
    return InvalidRecord(what, code="record.tree", where=shown_path(path), found=found)


def _decode_list(body: Json, blob: Callable[[str], Blob], path: Path) -> list[Any]:
    if type(body) is not list:
        raise _bad(path, "expected a list", body)
    return [decode(item, blob, (*path, str(index))) for index, item in enumerate(body)]


def _decode_dict(body: Json, blob: Callable[[str], Blob], path: Path) -> dict[str, Any]:
    if type(body) is not dict:
        raise _bad(path, "expected an object", body)
    return {key: decode(item, blob, (*path, key)) for key, item in body.items()}


def _decode_pairs(body: Json, blob: Callable[[str], Blob], path: Path) -> list[tuple[Any, Any]]:
    if type(body) is not list:
        raise _bad(path, "expected a list", body)
    pairs = [
        (decode(key, blob, (*path, index)), decode(item, blob, (*path, index)))
        for index, (key, item) in enumerate(body)
    ]
    if len(dict(pairs)) != len(pairs):
        raise _bad(path, "a key occurs twice", body)
    return pairs


def _decode_set(body: Json, blob: Callable[[str], Blob], path: Path) -> set[Any]:
    items = _decode_list(body, blob, path)
    if len(set(items)) != len(items):
        raise _bad(path, "an element occurs twice", body)
    return set(items)


def _decode_deque(body: Json, blob: Callable[[str], Blob], path: Path) -> deque[Any]:
    maxlen, items = body
    if maxlen is not None and (type(maxlen) is not int or maxlen < 0):
        raise _bad(path, "bad maximum length", maxlen)
    return deque(_decode_list(items, blob, path), maxlen)


def _decode_int(body: Json, _blob: Any, path: Path) -> int:
    # Hexadecimal, so that CPython's limit on decimal digits does not apply and conversion is linear.
    if type(body) is not str or "_" in body:
        raise _bad(path, "bad integer", body)
    return int(body, 16)


def _decode_range(body: Json, _blob: Any, path: Path) -> range:
    start, stop, step = (decode(part, _no_blob, path) for part in body)
    return range(start, stop, step)


def _no_blob(name: str) -> Blob:
    raise InvalidRecord("a tensor can't stand here", code="record.tree", found=name)


def _decode_scalar(body: Json, _blob: Any, path: Path) -> np.generic:
    name, data = body
    dtype, raw = plain_array_dtype(name), _unbase64(data)
    if dtype.itemsize == 0:  # an empty NumPy string
        return np.zeros(1, dtype)[0]  # type: ignore[no-any-return]
    if len(raw) != dtype.itemsize:
        raise ValueError("wrong length")
    return np.frombuffer(raw, dtype=dtype)[0]  # type: ignore[no-any-return]


def plain_array_dtype(name: str) -> np.dtype[Any]:
    """Parse a NumPy dtype string, refusing everything that could hold objects or fields."""
    if type(name) is not str or len(name) > 32 or any(character in name for character in ",O{}()"):
        raise ValueError(f"not a plain array dtype: {name!r}")
    dtype = np.dtype(name)
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"not a plain array dtype: {name!r}")
    return dtype


def _decode_array(body: Json, blob: Callable[[str], Blob], path: Path) -> CapturedArray:
    name, dtype, shape, order = body
    parsed = plain_array_dtype(dtype)
    if order not in ("C", "F") or not all(type(size) is int and size >= 0 for size in shape):
        raise _bad(path, "bad array layout", [shape, order])
    found = blob(name)
    if math.prod(shape) * parsed.itemsize != found.num_bytes:
        raise _bad(path, "array shape does not fit its bytes", [shape, found.num_bytes])
    return CapturedArray(parsed.str, tuple(shape), order == "F", found.source)


def _decode_tensor(body: Json, blob: Callable[[str], Blob], path: Path) -> Blob:
    if type(body) is not str:
        raise _bad(path, "bad tensor name", body)
    return blob(body)


def _decode_composite(cls: type[Composite]) -> Callable[[Json, Callable[[str], Blob], Path], Composite]:
    def decode_composite(body: Json, blob: Callable[[str], Blob], path: Path) -> Composite:
        description, parts = body
        found = {part: decode(item, blob, (*path, part)) for part, item in parts.items()}
        try:
            return cls.from_parts(decode(description, _no_blob, path), found)
        except InvalidRecord as error:
            raise InvalidRecord(
                error.what,
                code="record.tree",
                where=shown_path(path),
                expected=error.expected,
                found=error.found,
            ) from error

    return decode_composite


def _decode_own(body: Json, blob: Callable[[str], Blob], path: Path) -> Any:
    name, tree = body
    embedded = embedded_named(name)
    if embedded is None:
        raise _bad(path, "no value of segue's has this name", name)
    return embedded.build(decode(tree, blob, path), path)


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _fixed(body: Json, size: int) -> bytes:
    data = bytes.fromhex(body)
    if len(data) != size:
        raise ValueError("wrong length")
    return data


_DECODERS: dict[str, Callable[[Json, Callable[[str], Blob], Path], Any]] = {
    "dict": _decode_dict,
    "map": lambda body, blob, path: dict(_decode_pairs(body, blob, path)),
    "ordered": lambda body, blob, path: OrderedDict(_decode_pairs(body, blob, path)),
    "counter": lambda body, blob, path: Counter(dict(_decode_pairs(body, blob, path))),
    "tuple": lambda body, blob, path: tuple(_decode_list(body, blob, path)),
    "set": _decode_set,
    "frozenset": lambda body, blob, path: frozenset(_decode_set(body, blob, path)),
    "deque": _decode_deque,
    "int": _decode_int,
    "float": lambda body, blob, path: struct.unpack(">d", _fixed(body, 8))[0],
    "complex": lambda body, blob, path: complex(*struct.unpack(">dd", _fixed(body, 16))),
    "str": lambda body, blob, path: _unbase64(body).decode("utf-8", "surrogatepass"),
    "bytes": lambda body, blob, path: _unbase64(body),
    "bytearray": lambda body, blob, path: bytearray(_unbase64(body)),
    "range": _decode_range,
    "dtype": lambda body, blob, path: DTYPES[body] if body in DTYPES else _shell_dtype(body),
    "device": lambda body, blob, path: torch.device(body),
    "size": lambda body, blob, path: torch.Size(body),
    "scalar": _decode_scalar,
    "array": _decode_array,
    "tensor": _decode_tensor,
    "own": _decode_own,
    **{cls.tag: _decode_composite(cls) for cls in COMPOSITES},
}


def _shell_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError("not a dtype")
    return dtype


def thaw(tree: Any) -> Any:
    """Copy a tree into live values: captured tensors become host tensors, arrays become arrays; nothing is shared.

    Records that stand in it are values already, and stay what they are.
    """
    if isinstance(tree, CAPTURED):
        return tree.to_host()
    return _rebuilt(tree, thaw)


def copied(tree: Any) -> Any:
    """Copy a tree as a value: containers, and bytes that are in memory, are the copy's own."""
    if isinstance(tree, CapturedTensor | CapturedArray) and isinstance(tree.source, MemoryBytes):
        return replace(tree, source=MemoryBytes.copy_of(bytes(tree.source.view)))
    return _rebuilt(tree, copied)


def _rebuilt(tree: Any, rebuild: Callable[[Any], Any]) -> Any:
    """Make the containers of a tree anew, and what is in them by `rebuild`."""
    kind = type(tree)
    if kind in (list, tuple, set, frozenset):
        return kind(rebuild(item) for item in tree)
    if kind is deque:
        return deque((rebuild(item) for item in tree), tree.maxlen)
    if kind in (dict, OrderedDict):
        return kind((rebuild(key), rebuild(item)) for key, item in tree.items())
    if kind is Counter:
        return Counter(dict(tree))
    embedded = embedded_as(kind)
    if embedded is not None and embedded.is_opened:
        return embedded.build(rebuild(embedded.take_apart(tree)), ())
    return bytearray(tree) if kind is bytearray else tree


def same(left: Any, right: Any) -> bool:
    """Tell whether two trees are equal in types, structure, order of keys aside, and every bit."""
    if isinstance(left, CapturedTensor | CapturedArray):
        return isinstance(right, CapturedTensor | CapturedArray) and same_bits(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, Composite):
        return same(left.description, right.description) and same(dict(left.parts), dict(right.parts))
    if isinstance(left, dict):
        ours, theirs = _by_identity(left), _by_identity(right)
        return ours.keys() == theirs.keys() and all(same(item, theirs[key]) for key, item in ours.items())
    if isinstance(left, set | frozenset):
        return _by_identity(dict.fromkeys(left)).keys() == _by_identity(dict.fromkeys(right)).keys()
    if isinstance(left, list | tuple | deque):
        if isinstance(left, deque) and left.maxlen != right.maxlen:
            return False
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, np.generic):
        return bool(left.dtype == right.dtype) and left.tobytes() == right.tobytes()
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if (embedded := embedded_as(type(left))) is not None:
        return same(embedded.take_apart(left), embedded.take_apart(right))
    return bool(left == right)


def _by_identity(mapping: dict[Any, Any]) -> dict[Any, Any]:
    """Key a mapping so that 1, True and 1.0, and both zeros, which are one key to Python, are different ones."""
    return {
        key if type(key) is str else (repr(encode(key, _no_blobs)),): item for key, item in mapping.items()
    }


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every leaf with its path; an empty container is a leaf, so that absence and emptiness differ."""
    if isinstance(tree, Composite):
        yield from leaves({**tree.description, **tree.parts}, path)
    elif isinstance(tree, dict) and tree:
        for index, (key, item) in enumerate(tree.items()):
            yield from leaves(item, (*path, key_part(index, key)))
    elif isinstance(tree, list | tuple | deque) and tree:
        for index, item in enumerate(tree):
            yield from leaves(item, (*path, str(index)))
    elif (embedded := embedded_as(type(tree))) is not None:
        yield from leaves(embedded.take_apart(tree), path)
    else:
        yield path, tree


__all__ = [
    "DTYPE_NAMES", "MAX_DEPTH", "SCALARS", "Json", "Path", "blob_name", "decode", "encode", "key_part", "leaves",
    "plain_array_dtype", "same", "shown_path", "thaw",
]  # fmt: skip
