"""Tensor subclasses that segue admits: an allow-list of classes, and their context as a tree.

A quantized tensor of torchao is a class over plain tensors. It flattens into those and a context: a block size, a
dtype, the kwargs that quantize an activation. Both can be kept, and the class puts them together again without
quantizing anything.

Nothing is imported here, ever: neither a library that the user may not have, nor, far worse, a name that came from
data. A class is looked up among the modules that the program has imported, by a name of the lists below, and only
there; so a record can't reach any other code. A record can be read, verified and compared without the library.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from segue._record.composite import CapturedSubclass, invalid
from segue._record.parts import parts_of
from segue._record.tree import SCALARS, same
from segue.errors import InvalidRecord, UnsupportedState

_WORKFLOWS = "torchao.quantization.quantize_.workflows"
# By the name that each class gives itself (torchao 0.18). A name that moves in a later release is another class to a
# record, and refused, until it is added here.
TENSOR_CLASSES = frozenset({
    "torchao.optim.subclass_4bit.OptimState4bit",
    "torchao.optim.subclass_8bit.OptimState8bit",
    "torchao.optim.subclass_fp8.OptimStateFp8",
    "torchao.prototype.mx_formats.mx_tensor.MXTensor",
    "torchao.prototype.mx_formats.nvfp4_tensor.NVFP4Tensor",
    "torchao.prototype.quantized_training.int8.Int8QuantizedTrainingLinearWeight",
    "torchao.quantization.Float8Tensor",
    "torchao.quantization.Int4PlainInt32Tensor",
    "torchao.quantization.Int4Tensor",
    "torchao.quantization.Int4TilePackedTo4dTensor",
    "torchao.quantization.Int8Tensor",
    "torchao.quantization.IntxUnpackedToInt8Tensor",
    f"{_WORKFLOWS}.nf4.nf4_tensor.NF4Tensor",
})  # fmt: skip
# Dataclasses, named tuples and enums that stand in a context: fields and members, no behaviour of their own.
CONTEXT_CLASSES = frozenset({
    "torchao.float8.inference.Float8MMConfig",
    "torchao.prototype.mx_formats.config.ScaleCalculationMode",
    "torchao.prototype.mx_formats.mx_tensor.QuantizeTensorToMXKwargs",
    "torchao.prototype.mx_formats.nvfp4_tensor.QuantizeTensorToNVFP4Kwargs",
    "torchao.quantization.granularity.PerAxis",
    "torchao.quantization.granularity.PerBlock",
    "torchao.quantization.granularity.PerGroup",
    "torchao.quantization.granularity.PerRow",
    "torchao.quantization.granularity.PerTensor",
    "torchao.quantization.granularity.PerToken",
    "torchao.quantization.quant_primitives.MappingType",
    "torchao.quantization.quantize_.common.kernel_preference.KernelPreference",
    f"{_WORKFLOWS}.float8.float8_tensor.QuantizeTensorToFloat8Kwargs",
    f"{_WORKFLOWS}.int8.int8_tensor.QuantizeTensorToInt8Kwargs",
    f"{_WORKFLOWS}.intx.intx_unpacked_to_int8_tensor.IntxUnpackedToInt8TensorActivationQuantization",
    f"{_WORKFLOWS}.nf4.nf4_tensor.SubclassTensorArgs",
})  # fmt: skip
# Fields that repeat what the record of the tensor says of itself: a device would stay behind when a record is placed
# on another one, and a parameter's flag may change while the tensor stays what it is.
_SAID_ELSEWHERE: dict[str, tuple[str, ...]] = {
    f"{_WORKFLOWS}.nf4.nf4_tensor.SubclassTensorArgs": ("device", "requires_grad"),
}
_MAX_CONTEXT_DEPTH = 16


def full_name(cls: type) -> str:
    """Return the name by which a class is listed."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_admitted(cls: type) -> bool:
    """Tell whether a tensor class is one of the list: not one that derives from it, nor one that has its name."""
    return full_name(cls) in TENSOR_CLASSES and _imported(full_name(cls)) is cls


def is_imported_class(cls: type, name: str) -> bool:
    """Tell whether a class is what a module that is imported has under this name."""
    return full_name(cls) == name and _imported(name) is cls


def _imported(name: str) -> Any:
    """Return what an imported module has under a name of our own lists, or `None`. Imports nothing."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)


def _listed(name: Any, names: frozenset[str]) -> type:
    """Return the class of a name that came from data.

    Raises:
        InvalidRecord: If it is not on the list, or nothing has imported it.
    """
    if type(name) is not str or name not in names:
        raise invalid("a class that segue does not admit", found=name)
    cls = _imported(name)
    if not isinstance(cls, type) or full_name(cls) != name:
        module = name.rpartition(".")[0]
        raise InvalidRecord(
            "the class of a stored tensor is not there", code="record.import", where=name, found="not imported",
            hint=f"`import {module}` in the program, with the library's version of the run; segue imports nothing",
        )  # fmt: skip
    return cls


def context_tree(context: Any, where: str) -> Any:
    """Turn the context of a flattened tensor into a tree; inverse of `context_of`.

    A dictionary, an object with fields and a member of an enum become dictionaries of one entry, which tells which
    of them it is.

    Raises:
        UnsupportedState: If it holds anything else than plain values and objects of `CONTEXT_CLASSES`.
    """
    return _tree(context, where, 0)


def _tree(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind in SCALARS:
        return value
    if depth > _MAX_CONTEXT_DEPTH:
        raise UnsupportedState("the context of a tensor is nested too deeply", where=where)
    if kind in (list, tuple):
        return kind(_tree(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value))
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _tree(item, f"{where} {key}", depth + 1) for key, item in value.items()}}
    name = full_name(kind)
    if name not in CONTEXT_CLASSES or _imported(name) is not kind:
        raise UnsupportedState(
            "a tensor whose context holds an object of this type is not supported", where=where, found=name
        )
    if isinstance(value, enum.Enum):
        return {"member": (name, value.name)}
    left_out = _SAID_ELSEWHERE.get(name, ())
    fields = {
        field: _tree(getattr(value, field), f"{where} {field}", depth + 1)
        for field in _field_names(kind)
        if field not in left_out
    }
    return {"object": (name, fields)}


def _field_names(cls: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    fields: tuple[str, ...] = getattr(cls, "_fields", ())
    return fields


def context_of(tree: Any, elsewhere: Mapping[str, Any]) -> Any:
    """Turn a tree back into the context of a tensor: the inverse of `context_tree`.

    Args:
        tree: Possibly hostile.
        elsewhere: What the fields hold that are not in the tree, since the record says it already.

    Raises:
        InvalidRecord: If it is anything but what `context_tree` makes, or names a class that isn't imported.
    """
    kind = type(tree)
    if kind in SCALARS:
        return tree
    if kind in (list, tuple):
        return kind(context_of(item, elsewhere) for item in tree)
    if kind is dict and len(tree) == 1:
        [(tag, body)] = tree.items()
        if tag in _CONTEXT_TAGS:
            return _CONTEXT_TAGS[tag](body, elsewhere)
    raise invalid("not the context of a tensor", found=tree)


def _dict_of(body: Any, elsewhere: Mapping[str, Any]) -> dict[str, Any]:
    if type(body) is not dict or not all(type(key) is str for key in body):
        raise invalid("not the context of a tensor", found=body)
    return {key: context_of(item, elsewhere) for key, item in body.items()}


def _member_of(body: Any, _elsewhere: Mapping[str, Any]) -> enum.Enum:
    name, member = _pair(body)
    cls = _listed(name, CONTEXT_CLASSES)
    if not issubclass(cls, enum.Enum) or type(member) is not str or member not in cls.__members__:
        raise invalid("no such member of an enum", found=body)
    return cls.__members__[member]


def _object_of(body: Any, elsewhere: Mapping[str, Any]) -> Any:
    name, tree = _pair(body)
    cls = _listed(name, CONTEXT_CLASSES)
    fields = _dict_of(tree, elsewhere)
    said = {field: elsewhere[field] for field in _SAID_ELSEWHERE.get(name, ())}
    if fields.keys() & said.keys() or {*fields, *said} != set(_field_names(cls)):
        raise invalid("not the fields of the class", _field_names(cls), sorted(fields))
    return cls(**fields, **said)


def _pair(body: Any) -> tuple[Any, Any]:
    if type(body) is not tuple or len(body) != 2:
        raise invalid("not the context of a tensor", found=body)
    return body


_CONTEXT_TAGS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "dict": _dict_of, "member": _member_of, "object": _object_of,
}  # fmt: skip


def rebuild(captured: CapturedSubclass, parts: Mapping[str, Any]) -> torch.Tensor:
    """Make a tensor of the captured class over new parts, which need not be filled yet.

    Args:
        captured: Possibly hostile.
        parts: A live tensor for each part of it, of its layout.

    Raises:
        InvalidRecord: If the class is not admitted or not imported, or if what it makes is not what was captured.
    """
    cls: Any = _listed(captured.class_name, TENSOR_CLASSES)
    parts_of(captured)  # a hostile record may hold anything as a part
    device = next((part.device for part in parts.values()), torch.device("cpu"))
    try:
        context = context_of(captured.context, {"device": device, "requires_grad": False})
        problem = _PROBLEMS.get(captured.class_name, _no_problem)(captured)
        if problem is not None:
            raise invalid(problem, found=captured.description)
        tensor = cls.__tensor_unflatten__(dict(parts), context, captured.shape, captured.strides)
        _check_made(captured, tensor, parts)
    except InvalidRecord:
        raise
    except Exception as error:  # a constructor that is given nonsense raises whatever it comes upon
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise invalid(f"the class does not take it: {first_line}"[:300], found=captured.class_name) from error
    return tensor  # type: ignore[no-any-return]


def _check_made(captured: CapturedSubclass, tensor: Any, parts: Mapping[str, Any]) -> None:
    """Refuse a tensor that would not be captured as it was: one that ignored a part, or part of the context."""
    names, context = tensor.__tensor_flatten__()
    made = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
    if (
        made != (captured.dtype, captured.shape, captured.strides)
        or tuple(names) != tuple(captured.parts)
        or any(getattr(tensor, name) is not parts[name] for name in names)
        or not same(context_tree(context, captured.class_name), captured.context)
    ):
        raise invalid("the class makes another tensor of it", found=captured.description)


def _no_problem(_captured: CapturedSubclass) -> str | None:
    return None


def _blocks_problem(codes_per_element: float, table_size: int | None) -> Callable[..., str | None]:
    """Make a check of a quantized optimizer state, which trusts its parts: each value must have a code and a scale.

    The step reads `qmap` at every code. A table that is too short would be read beyond its end by compiled kernels.
    """

    def problem(captured: CapturedSubclass) -> str | None:
        sizes = {name: math.prod(getattr(part, "shape", ())) for name, part in captured.parts.items()}
        elements = math.prod(captured.shape)
        if sizes.get("codes") != elements * codes_per_element:
            return "a quantized state has not one code for each element"
        if not sizes.get("scale") or elements % sizes["scale"] != 0:
            return "a quantized state whose elements are no whole number of blocks"
        if table_size is not None and sizes.get("qmap") != table_size:
            return f"a quantized state without a table of {table_size} values"
        return None

    return problem


_PROBLEMS: dict[str, Callable[[CapturedSubclass], str | None]] = {
    "torchao.optim.subclass_4bit.OptimState4bit": _blocks_problem(0.5, 16),
    "torchao.optim.subclass_8bit.OptimState8bit": _blocks_problem(1, 256),
    "torchao.optim.subclass_fp8.OptimStateFp8": _blocks_problem(1, None),
}
