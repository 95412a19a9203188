"""A second device with values that needs no accelerator: torch's backend for Python, over arrays on a shelf.

It belongs to a whole process from the first use on, so everything here runs in one of its own. Each tensor has its array as
an attribute (torch 2.13): enough to allocate, to view as another dtype, and to copy to and from the host.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import segue
from segue.errors import DeviceMismatch

_ARRAYS = {torch.float32: np.float32, torch.int32: np.int32}


def _tensor(array, dtype):
    made = torch._C._acc.create_empty_tensor(array.shape, dtype)
    made.array = array
    return made


def _empty_strided(size, stride, dtype=None, **_):
    dtype = dtype or torch.float32
    return _tensor(np.zeros(tuple(size), _ARRAYS[dtype]), dtype)


def _copy(source, target, non_blocking=False):
    if target.device.type == "cpu":
        target.numpy()[...] = source.array
    else:
        target.array[...] = source.numpy()
    return target


def put_up() -> torch.library.Library:
    """Make the device known to this process, for as long as what is returned lives."""
    _setup_privateuseone_for_python_backend("shelf")
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl(
        "empty.memory_format", lambda size, **options: _empty_strided(size, None, **options), "PrivateUse1"
    )
    library.impl("_copy_from", _copy, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl("view.dtype", lambda own, dtype: _tensor(own.array.view(_ARRAYS[dtype]), dtype), key)
        library.impl("detach", lambda own: _tensor(own.array, own.dtype), key)
    return library


def parameter(values):
    """Return a parameter on the shelf."""
    made = torch.empty_strided((len(values),), (1,), device="shelf")
    made.array[...] = values
    made.__class__ = nn.Parameter  # its constructor wants a tensor that Python doesn't know yet
    return made.requires_grad_(True)


def on_shelf(values):
    made = torch.empty_strided((len(values),), (1,), device="shelf")
    made.array[...] = values
    return made


class Two(nn.Module):
    """A parameter on the host, and one on the shelf."""

    def __init__(self):
        super().__init__()
        self.near = nn.Parameter(torch.zeros(3))
        self.far = parameter([0.0, 0.0])


def restored_on_both(folder: str) -> None:
    """Each pending gradient comes back on its parameter's own device, from memory and from a checkpoint."""
    library = put_up()
    model = Two()
    model.near.grad = torch.tensor([1.0, 2.0, 3.0])
    model.far.grad = on_shelf([4.0, float("-inf")])
    record = segue.TrainingRecord.capture(model, model_state="mine")
    segue.save(record, Path(folder) / "one")
    for each in (record, segue.load(Path(folder) / "one")):
        restored = each.restore(Two(), restore_model=lambda state, model: model).model
        assert (restored.near.grad.device.type, restored.far.grad.device.type) == ("cpu", "shelf")
        assert restored.near.grad.tolist() == [1.0, 2.0, 3.0]
        assert restored.far.grad.array.tolist() == [4.0, float("-inf")]
    del library


def refused_elsewhere(folder: str) -> None:
    """A model that is partly on the shelf is not on the host, nor the other way round; nothing moves."""
    library = put_up()
    record = segue.TrainingRecord.capture(Two(), model_state="mine")
    for device, name in (
        ("cpu", "model.device.far"),
        ("shelf:0", "model.device.near"),
        ("shelf", "model.device.near"),
    ):
        model = Two()
        with pytest.raises(DeviceMismatch) as caught:
            record.restore(model, restore_model=lambda state, model: model, device=device)
        assert [finding.code for finding in caught.value.findings] == [name]
        assert (model.near.device.type, model.far.device.type) == ("cpu", "shelf")
    del library
