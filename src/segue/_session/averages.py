"""Averaged weights in the model of a training: what is watched, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from segue._capture.averages import AveragesWatch, Candidates
from segue._capture.naming import NamedTensor, named_tensors
from segue._record.composite import blobs
from segue._record.tensors import CapturedTensor
from segue._record.training import TrainingRecord
from segue._session.live import LiveTraining


def watch_averages(live: LiveTraining) -> AveragesWatch:
    """Begin to watch the model of a training."""
    return AveragesWatch(live.scheduled().values(), *_watched(live))


def watch_anew(watch: AveragesWatch, live: LiveTraining) -> None:
    """Begin anew, as after a restore."""
    watch.forget(*_watched(live))


def refuse_averages(watch: AveragesWatch, live: LiveTraining, record: TrainingRecord) -> None:
    """Raise if a record was captured of averaged weights that stand in the model.

    Raises:
        NotAtBoundary: If it was.
    """
    components = {f"component.{name}": value for name, value in live.components.items()}
    saved: dict[str, Candidates] = {
        f"component.{name}": partial(_saved, component.tree)
        for name, component in record.components.items()
        if component.module is None
    }
    saved["caller state"] = partial(_saved, record.caller_state)
    watch.refuse_swapped(_trained(live), components, _tensors(live), saved)


def _watched(live: LiveTraining) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    items = [item.tensor for each in _tensors(live).values() for item in each]
    return list(_trained(live).values()), [tensor for tensor in items if tensor is not None]


def _trained(live: LiveTraining) -> dict[str, torch.Tensor]:
    tensors = {name: item.tensor for name, item in named_tensors(live.model, "model").items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None and tensor.requires_grad}


def _tensors(live: LiveTraining) -> dict[str, list[NamedTensor]]:
    return {
        f"component.{name}": list(named_tensors(value, f"component.{name}").values())
        for name, value in live.components.items()
        if isinstance(value, nn.Module)
    }


def _saved(tree: Any) -> Iterator[torch.Tensor]:
    for blob in blobs(tree):
        if isinstance(blob, CapturedTensor):
            yield blob.to_host()
