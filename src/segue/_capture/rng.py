"""The global random streams: Python, NumPy, torch on the CPU and on every accelerator in use.

Captured last of all reads and restored last of all writes: making a data loader's iterator draws from torch's
global stream (torch 2.13). Python and NumPy each keep a pending Gaussian beside their generator; both are included.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from segue._capture.plain import freeze
from segue._capture.writes import ObjectWrite, Write
from segue._record.tensors import CapturedTensor
from segue._record.tree import thaw
from segue.errors import ComponentMismatch, Finding

_GENERATOR_BYTES = 5056  # torch's CPU generator state, the cached normal included (torch 2.13)


class RngStreams:
    """All global random streams; the default of `Training(rng=...)`."""

    def capture(self) -> dict[str, Any]:
        """Copy the state of each stream. Draws nothing."""
        return {
            "python": _capture_python(),
            "numpy": freeze(np.random.get_state(legacy=False), "numpy stream"),
            "torch": freeze(torch.get_rng_state(), "torch stream"),
            "accelerators": {
                str(device): freeze(state, str(device)) for device, state in _accelerator_states()
            },
        }

    def check(self, record: Mapping[str, Any]) -> Iterator[Finding]:
        """Yield streams whose state would be refused, by setting it in generators made for the purpose."""
        for name, attempt in (("python", _try_python), ("numpy", _try_numpy), ("torch", _try_torch)):
            try:
                attempt(record[name])
            except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
                yield _stream_finding(name, f"the state of a random stream does not fit here: {error}")
        states = record.get("accelerators")
        if type(states) is not dict:
            yield _stream_finding("accelerators", "the record has no table of accelerators")
            return
        for name, state in states.items():
            if not _exists(name):
                yield _stream_finding(str(name), "a random stream of the record does not exist here")
            elif not isinstance(state, CapturedTensor) or state.dtype is not torch.uint8:
                yield _stream_finding(name, "the state of a random stream is none")

    def plan(self, record: Mapping[str, Any]) -> list[Write]:
        """Plan to set every stream."""
        return [ObjectWrite("random streams", lambda: _restore(record))]


def _stream_finding(name: str, what: str) -> Finding:
    return Finding(ComponentMismatch, f"streams.{name}", what, f"random stream {name}")


def _capture_python() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    state = np.array(internal, dtype=np.uint32)
    return {"version": version, "state": freeze(state, "python stream"), "gauss": gauss}


def _python_state(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["version"], tuple(int(word) for word in thaw(record["state"])), record["gauss"]


def _try_python(record: Mapping[str, Any]) -> None:
    random.Random().setstate(_python_state(record))


def _try_numpy(record: Any) -> None:
    name = record["bit_generator"]
    live = np.random.get_state(legacy=False)["bit_generator"]
    if name != live:
        raise ValueError(f"it was made by {name}, here it is {live}")
    # The name equals that of the live generator, so nothing is looked up by a name that came from data.
    np.random.RandomState(getattr(np.random, live)()).set_state(thaw(record))


def _try_torch(record: Any) -> None:
    if not isinstance(record, CapturedTensor) or record.dtype is not torch.uint8:
        raise ValueError("not a generator state")
    if record.num_bytes != _GENERATOR_BYTES:
        raise ValueError(f"{record.num_bytes} bytes instead of {_GENERATOR_BYTES}")
    torch.Generator().set_state(record.to_host())


def _accelerator_states() -> Iterator[tuple[torch.device, torch.Tensor]]:
    # Asking an accelerator that the program has not used yet would start it, which costs memory and seconds.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            yield torch.device("cuda", index), torch.cuda.get_rng_state(index)
    if torch.backends.mps.is_available():
        yield torch.device("mps"), torch.mps.get_rng_state()
    if hasattr(torch, "xpu") and torch.xpu.is_available() and torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.xpu.device_count()):
            yield torch.device("xpu", index), torch.xpu.get_rng_state(index)


def _exists(name: Any) -> bool:
    try:
        device = torch.device(name) if type(name) is str else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cuda", "mps", "xpu"):
        return False
    module = getattr(torch, device.type)
    return bool(module.is_available()) and (device.index or 0) < module.device_count()


def _restore(record: Mapping[str, Any]) -> None:
    random.setstate(_python_state(record["python"]))
    np.random.set_state(thaw(record["numpy"]))
    torch.set_rng_state(record["torch"].to_host())
    for name, state in record["accelerators"].items():
        device = torch.device(name)
        getattr(torch, device.type).set_rng_state(
            state.to_host(), *([] if device.index is None else [device.index])
        )
