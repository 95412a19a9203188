"""What a tensor of a subclass consists of, without values: the part of a contract that a plain tensor doesn't need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from segue._record.composite import CapturedSubclass, Composite
from segue._record.structure import added
from segue._record.tensors import DTYPE_NAMES, CapturedTensor
from segue._record.tree import Path, leaves, same
from segue.errors import ABSENT, InvalidRecord

Difference = tuple[str, tuple[str, ...], Any, Any]
"""An aspect, the path of parts that leads to it, and both sides."""


@dataclass(frozen=True)
class PartSpec:
    """One tensor that another consists of; it lives where that one does."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    parts: PartsSpec | None = added(since=2)
    """What it consists of in its turn."""


@dataclass(frozen=True, eq=False)
class PartsSpec:
    """The class of a tensor, its context and its parts."""

    class_name: str
    context: Any
    """Everything that the class keeps besides tensors (block size, kernel), as `_record.subclass` encodes it."""
    tensors: Mapping[str, PartSpec]
    """In the order in which the class names them."""

    @property
    def short_name(self) -> str:
        """The name of the class, without its module."""
        return self.class_name.rpartition(".")[2]

    def __eq__(self, other: object) -> bool:
        """Compare, telling `True` from 1, which are equal to Python and may mean different things to a class."""
        return isinstance(other, PartsSpec) and next(self.differences(other), None) is None

    def differences(self, found: PartsSpec) -> Iterator[Difference]:
        """Yield what differs between this, of the record, and `found`, of the live tensor."""
        if self.class_name != found.class_name:
            yield "class", (), self.class_name, found.class_name
            return
        if not same(self.context, found.context):
            yield ("context", (), *_differing(self.context, found.context))
        for name in [*self.tensors, *(name for name in found.tensors if name not in self.tensors)]:
            before, now = self.tensors.get(name), found.tensors.get(name)
            if before is None or now is None:
                yield "part", (name,), _shown(before), _shown(now)
            else:
                yield from _part_differences(name, before, now)
        if self.tensors.keys() == found.tensors.keys() and [*self.tensors] != [*found.tensors]:
            yield "order", (), [*self.tensors], [*found.tensors]


def class_of(parts: PartsSpec | None) -> str:
    """Name the class of a tensor for people."""
    return "a plain tensor" if parts is None else parts.class_name


def _shown(part: PartSpec | None) -> str:
    return "absent" if part is None else f"{part.dtype} {part.shape}"


def _part_differences(name: str, before: PartSpec, now: PartSpec) -> Iterator[Difference]:
    for aspect in ("dtype", "shape", "strides"):
        left, right = getattr(before, aspect), getattr(now, aspect)
        if left != right and not (aspect == "strides" and before.shape != now.shape):
            yield f"part_{aspect}", (name,), left, right
    if before.parts is None or now.parts is None:
        if before.parts is not now.parts:
            yield "class", (name,), class_of(before.parts), class_of(now.parts)
        return
    for aspect, path, left, right in before.parts.differences(now.parts):
        yield aspect, (name, *path), left, right


def _differing(left: Any, right: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of two contexts that differ, by where they stand."""
    before, after = dict(_entries(left)), dict(_entries(right))
    paths = [
        path
        for path in [*before, *(path for path in after if path not in before)]
        if path not in before or path not in after or not same(before[path], after[path])
    ]
    shown = ({path: side.get(path, ABSENT) for path in paths} for side in (before, after))
    return next(shown), next(shown)


def _entries(context: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a context by where they stand, without the tags of its encoding."""
    for path, value in leaves(context):
        yield ".".join(_without_tags(path)), value


def _without_tags(path: Path) -> Iterator[str]:
    within_pair = False
    for part in map(str, path):
        if within_pair and part in ("0", "1"):
            yield from ["class"] if part == "0" else []
        elif part not in ("dict", "object", "member"):
            yield part
        within_pair = part in ("object", "member")


def parts_of(captured: object) -> PartsSpec | None:
    """Describe the parts of a captured tensor; `None` for a plain one.

    Raises:
        InvalidRecord: If a part is neither plain nor of a subclass.
    """
    if not isinstance(captured, CapturedSubclass):
        return None
    tensors = {name: _part_of(captured, name, part) for name, part in captured.tensors.items()}
    return PartsSpec(captured.class_name, captured.context, tensors)


def _part_of(whole: CapturedSubclass, name: str, part: CapturedTensor | Composite) -> PartSpec:
    if not isinstance(part, CapturedTensor | CapturedSubclass) or part.device != whole.device:
        raise InvalidRecord(
            "a part of a tensor subclass can't stand there", code="record.composite", where=name
        )
    return PartSpec(DTYPE_NAMES[part.dtype], part.shape, part.strides, parts_of(part))
