"""From live memory to the record's own, in two parts: what has to happen now, and what a thread can wait for.

On the CPU nothing has to: the thread copies, by one `memmove` without the interpreter's lock. (A copy by torch would
set up a second team of OpenMP threads beside the one that trains.) On an accelerator the copy is issued at once, on
a stream beside the training's and into pinned host memory; the thread waits for its event.

The accelerator's side has been tried with stand-ins for streams and events alone: no machine with one was at hand.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Protocol

import numpy as np
import torch

from segue._record.tensors import bit_view, host_bytes

# Devices with streams of their own and pinned host memory, which `torch.accelerator` serves alike (torch 2.13).
_WITH_STREAMS = frozenset({"cuda", "xpu"})


class Transfer(Protocol):
    """One copy on its way."""

    @property
    def data(self) -> torch.Tensor:
        """Flat uint8 host memory; right once `finish` has returned."""
        ...

    def finish(self) -> None:
        """Make the copy, or wait for it. Called once, by any thread."""
        ...


def can_transfer(tensor: torch.Tensor) -> bool:
    """Tell whether there is a way to copy tensors of this device beside the training."""
    return tensor.device.type == "cpu" or tensor.device.type in _WITH_STREAMS


def begin_transfer(tensor: torch.Tensor) -> Transfer:
    """Begin to copy a contiguous tensor; ordered behind all work that was issued before."""
    return HostTransfer(tensor) if tensor.device.type == "cpu" else DeviceTransfer(tensor)


class HostTransfer:
    """Copies from host memory when it is asked to finish."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._source = tensor
        # Not `torch.empty`: in deterministic mode that would fill it, here and now (torch 2.13).
        self.data = torch.from_numpy(np.empty(tensor.nbytes, dtype=np.uint8))

    def finish(self) -> None:
        ctypes.memmove(self.data.data_ptr(), self._source.data_ptr(), self.data.numel())


class Streams:
    """The streams, events and pinned memory of an accelerator; replaced in tests."""

    def current(self, device: torch.device) -> Any:
        """Return the stream that the training issues its work to."""
        return torch.accelerator.current_stream(device)

    def side(self, device: torch.device) -> Any:
        """Return the stream of the copies, one for each device."""
        return _side_stream(device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Allocate host memory that the device can write by itself."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


@functools.cache
def _side_stream(device: torch.device) -> torch.Stream:
    return torch.Stream(device)


class DeviceTransfer:
    """Copies from an accelerator on a stream of its own, while the training's goes on."""

    def __init__(self, tensor: torch.Tensor, streams: Streams | None = None) -> None:
        streams = streams or Streams()
        self._source = tensor  # or its memory could be handed to another tensor before it is copied
        self.data = streams.pinned(tensor.nbytes)
        side = streams.side(tensor.device)
        side.wait_stream(streams.current(tensor.device))
        with side:
            self.data.copy_(host_bytes(bit_view(tensor)), non_blocking=True)
            self._copied = side.record_event()

    def finish(self) -> None:
        self._copied.synchronize()
