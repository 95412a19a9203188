"""What a dataset and a sampler are, as far as that is cheap to tell, as plain values.

Nothing here reads the samples. A sampler's list of indices or weights is sampled evenly, so that a large one costs no
more than a small one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from segue._capture.data.classes import STREAMED_DATASET, TABLE_DATASET, is_a
from segue._capture.data.streamed import description
from segue._capture.sampler.seeded_samples import SeededSamples
from segue._capture.staging import type_name

_SETTINGS = (
    "replacement",
    "num_samples",
    "shuffle",
    "seed",
    "num_replicas",
    "rank",
    "drop_last",
    "batch_size",
)
_LISTS = ("weights", "indices")
_MAX_LOOKED_AT = 1024


def dataset_entries(dataset: Any) -> dict[str, Any]:
    """Return what a dataset is: class, number of samples where it has one, and identity where that is cheap."""
    found: dict[str, Any] = {"dataset": type_name(dataset)}
    length = length_of(dataset)
    if length is not None:
        found["dataset_length"] = length
    identity = _identity(dataset)
    if identity is not None:
        found["dataset_identity"] = identity
    return found


def iterable_entries(loader: Any) -> dict[str, Any]:
    """Return what an object that is iterated over itself is, as entries of a contract."""
    if is_a(loader, STREAMED_DATASET):
        return dataset_entries(loader)
    found: dict[str, Any] = {"class": type_name(loader)}
    length = length_of(loader)
    return found if length is None else {**found, "length": length}


def sampler_entries(sampler: Any, aspect: str = "sampler") -> dict[str, Any]:
    """Return what a sampler is: its class, and those of its settings that decide an order."""
    found: dict[str, Any] = {aspect: type_name(sampler)}
    for name in _SETTINGS:
        value = getattr(sampler, name, None)
        if type(value) in (bool, int, float, str):
            found[f"{aspect}.{name}"] = value
    for name in _LISTS:
        value = getattr(sampler, name, None)
        if value is not None and (digest := _digest(value)) is not None:
            found[f"{aspect}.{name}"] = digest
    return found


def length_of(dataset: Any) -> int | None:
    """Return the number of samples, if the dataset knows it."""
    if not isinstance(dataset, Sized):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _identity(dataset: Any) -> Any:
    if is_a(dataset, STREAMED_DATASET):
        return description(dataset)
    if is_a(dataset, TABLE_DATASET):
        fingerprint = getattr(dataset, "_fingerprint", None)
        return fingerprint if isinstance(fingerprint, str) else None
    if isinstance(dataset, TensorDataset):
        return [f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.") for tensor in dataset.tensors]
    if isinstance(dataset, Subset):
        return [_digest(dataset.indices), type_name(dataset.dataset), _identity(dataset.dataset)]
    if isinstance(dataset, SeededSamples):
        return [dataset.seed, type_name(dataset.dataset), _identity(dataset.dataset)]
    inner = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
    return None if inner is None or inner is dataset else [type_name(inner), _identity(inner)]


def _digest(values: Any) -> str | None:
    """Name a list of numbers by its length and some of them."""
    if isinstance(values, torch.Tensor | np.ndarray):
        values = values.reshape(-1)
    elif not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return None
    step = max(1, len(values) // _MAX_LOOKED_AT)
    some = [_number(values[index]) for index in range(0, len(values), step)]
    hashed = hashlib.blake2b(repr(some).encode(), digest_size=8).hexdigest()
    return f"{len(values)} entries, {hashed}"


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor | np.generic) else value
