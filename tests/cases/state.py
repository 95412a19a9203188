"""What a live training is, read without segue: names, types, layouts and every byte."""

import pytest
import torch

import segue
from segue.errors import MismatchError


def raw(value):
    """Any value of a training as something that compares bit for bit."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = bytes(flat.view(torch.uint8).numpy()) if value.numel() else b""
        return str(value.dtype), tuple(value.shape), value.stride(), data
    if isinstance(value, dict):
        return {key: raw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [raw(item) for item in value]
    return type(value), repr(value)


def live(model, *optimizers):
    """Parameters, buffers, gradients, modes, optimizer state and options, by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        "parameters": {name: raw(p) for name, p in sorted(model.named_parameters())},
        "gradients": {name: p.grad if p.grad is None else raw(p.grad) for name, p in sorted(model.named_parameters())},
        "flags": {name: p.requires_grad for name, p in sorted(model.named_parameters())},
        "buffers": {name: raw(buffer) for name, buffer in sorted(model.named_buffers())},
        "modes": {name: module.training for name, module in sorted(model.named_modules())},
        "state": [
            sorted((names.get(id(p), "stranger"), raw(dict(slots))) for p, slots in optimizer.state.items())
            for optimizer in optimizers
        ],
        "options": [
            sorted(
                (sorted(names.get(id(p), "stranger") for p in group["params"]),
                 sorted((k, raw(v)) for k, v in group.items() if k not in ("params", "param_names")))
                for group in optimizer.param_groups
            )
            for optimizer in optimizers
        ],
    }  # fmt: skip


def stored(record, folder):
    """The record as it comes back from disk."""
    place = folder / f"record-{len(list(folder.iterdir()))}"
    segue.save(record, place)
    return segue.load(place)


def everything(model, *optimizers):
    """All that is live, the defaults of optimizers too: a group that is added later begins with them."""
    return live(model, *optimizers), [raw(optimizer.defaults) for optimizer in optimizers]


def codes_of(training, record, error=MismatchError, **options):
    """Return what a refused restore tells."""
    with pytest.raises(error) as caught:
        training.restore(record, **options)
    return [finding.code for finding in caught.value.findings]
