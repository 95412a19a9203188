"""Where captured values are written: new memory, or live tensors that fit, part by part."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from segue._capture.staging import parts_spec, plain_parts
from segue._capture.subclass import flattened, is_admitted_subclass
from segue._capture.writes import ObjectWrite, TensorWrite, Write
from segue._record.composite import CapturedSubclass
from segue._record.parts import parts_of
from segue._record.subclass import rebuild
from segue._record.tensors import CapturedTensor, empty_like_captured


def empty_like(captured: CapturedTensor | CapturedSubclass, device: str | torch.device) -> torch.Tensor:
    """Allocate a tensor with the recorded layout, for `fill_writes`.

    Raises:
        InvalidRecord: If it is of a class that is not admitted or not imported, or if that does not take it.
    """
    if isinstance(captured, CapturedTensor):
        return empty_like_captured(captured, device)
    parts = {
        name: empty_like(part, device)
        for name, part in captured.tensors.items()
        if isinstance(part, CapturedTensor | CapturedSubclass)
    }
    return rebuild(captured, parts)  # which refuses other parts


def fill_writes(
    where: str, target: torch.Tensor, captured: CapturedTensor | CapturedSubclass
) -> Iterator[Write]:
    """Plan to write the recorded bits into a tensor of the recorded layout, in place."""
    if isinstance(captured, CapturedTensor):
        yield TensorWrite(where, target, captured)
        return
    live, _ = flattened(target, where)
    for name, part in captured.tensors.items():  # by name: a record may list them in any order
        assert isinstance(part, CapturedTensor | CapturedSubclass), "what has other parts is refused before"
        yield from fill_writes(f"{where} {name}", live[name], part)
    yield ObjectWrite(where, lambda: _mark_written(target))


def _mark_written(whole: torch.Tensor) -> None:
    # A graph that is still alive may have saved the whole, and looks at its counter; the parts have their own.
    if not whole.is_inference():
        torch.autograd.graph.increment_version(whole)


def fits(tensor: object, captured: CapturedTensor | CapturedSubclass) -> bool:
    """Tell whether a live tensor can be filled: of the recorded class, layout and device, with memory of its own."""
    if not isinstance(tensor, torch.Tensor) or str(tensor.device) != captured.device:
        return False
    if isinstance(captured, CapturedTensor):
        return type(tensor) is torch.Tensor and captured.has_layout_of(tensor) and _owns_memory(tensor)
    return (
        is_admitted_subclass(tensor)
        and (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        == (captured.dtype, captured.shape, captured.strides)
        and parts_spec(tensor, "") == parts_of(captured)
        and all(_owns_memory(part) for _, part in plain_parts(tensor))
    )


def _owns_memory(tensor: torch.Tensor) -> bool:
    # What is a view of something else may share memory with another slot.
    return not tensor._is_view() and not tensor.is_inference()
