"""Classes of other libraries by name: torchdata and datasets are never imported here, only recognised."""

from __future__ import annotations

import inspect
from typing import Any

from segue._capture.staging import class_name

STATEFUL_LOADER = "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader"
PLAIN_LOADER = "torch.utils.data.dataloader.DataLoader"
ITERABLE_DATASET = "torch.utils.data.dataset.IterableDataset"
STREAMED_DATASET = "datasets.iterable_dataset.IterableDataset"
TABLE_DATASET = "datasets.arrow_dataset.Dataset"
NODE = "torchdata.nodes.base_node.BaseNode"
NODES_LOADER = "torchdata.nodes.loader.Loader"
COUNTING_SAMPLER = "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler"
PREPARED_LOADER = "accelerate.data_loader.DataLoaderAdapter"
ITERABLE_NODE = "torchdata.nodes.adapters.IterableWrapper"
SAMPLER_NODE = "torchdata.nodes.adapters.SamplerWrapper"


def is_a(value: object, *names: str) -> bool:
    """Tell whether an object is of a class that is called so, or of a subclass."""
    return any(class_name(cls) in names for cls in type(value).__mro__)


def is_exactly(value: object, *names: str) -> bool:
    """Tell whether an object is of a class that is called so, and of no subclass, which may do otherwise."""
    return class_name(type(value)) in names


def iterates_itself(loader: object, name: str) -> bool:
    """Tell whether an object of a subclass of the class that is called so has an `__iter__` of its own."""
    cls = type(loader)
    base = next(each for each in cls.__mro__ if class_name(each) == name)
    return getattr(cls, "__iter__", None) is not getattr(base, "__iter__", None)


def has_state(value: object) -> bool:
    """Tell whether an object saves and takes over its own state."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def has_ended(iterator: Any) -> bool:
    """Tell whether a generator has come to its end; other iterators don't tell."""
    return inspect.isgenerator(iterator) and inspect.getgeneratorstate(iterator) == inspect.GEN_CLOSED


def same_class(before: Any, now: Any) -> bool:
    """Tell whether two names of classes mean one: those of a script are in `__main__`, or in a module."""
    if before == now or not (isinstance(before, str) and isinstance(now, str)):
        return bool(before == now)
    if not (before.startswith("__main__.") or now.startswith("__main__.")):
        return False
    one, other = before.removeprefix("__main__."), now.removeprefix("__main__.")
    return one.endswith(f".{other}") or other.endswith(f".{one}")
