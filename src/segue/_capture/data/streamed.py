"""Streamed datasets of the library `datasets`: what they are made of, and whether their own state is whole.

`IterableDataset.state_dict` (datasets 5.2) says where each source stands, but not what is in a shuffle buffer: loading it
fills the buffer anew, and what was in it is never seen. With `with_format("arrow")` a batched `map` may skip a batch, as
its documentation says. Both are found here, and such a dataset is run again from the beginning of the pass instead,
which is exact: its order comes from its seed and its epoch alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

_BUFFERED = "BufferShuffledExamplesIterable"
_MAPPED = ("MappedExamplesIterable", "FilteredExamplesIterable")
# Those whose state was read and tried (datasets 5.2): it stands at the example that was yielded last. Not a generator of
# the program's: it is skipped over when the next example is asked for, and draws then what it has drawn already.
_WHOLE = (
    "ArrowExamplesIterable", "RebatchedArrowExamplesIterable", "SelectColumnsIterable",
    "StepExamplesIterable", "VerticallyConcatenatedMultiSourcesExamplesIterable", "SkipExamplesIterable",
    "TakeExamplesIterable", "FormattedExamplesIterable", "ShuffledDataSourcesExamplesIterable",
    "ShuffledDataSourcesArrowExamplesIterable", *_MAPPED,
)  # fmt: skip
_SETTINGS = (
    "buffer_size",
    "batch_size",
    "batched",
    "step",
    "offset",
    "n",
    "num_times",
    "drop_last_batch",
    "with_indices",
)


def description(dataset: Any) -> dict[str, Any]:
    """Return what a streamed dataset is made of: its stages in order, their settings, and their generators' states."""
    found: dict[str, Any] = {"stages": [_stage(each) for each in _stages(dataset)]}
    shards = getattr(dataset, "num_shards", None)
    if type(shards) is int:
        found["num_shards"] = shards
    distributed = getattr(dataset, "_distributed", None)
    if distributed is not None:
        found["rank"] = [getattr(distributed, "rank", None), getattr(distributed, "world_size", None)]
    return found


def saves_itself_whole(dataset: Any) -> bool:
    """Tell whether the dataset's own state says everything about where it stands."""
    formatting = getattr(dataset, "_formatting", None)
    as_table = bool(getattr(formatting, "is_table", False)) or _formats_tables(dataset)
    for stage in _stages(dataset):
        name = type(stage).__name__
        if name not in _WHOLE or (name in _MAPPED and (getattr(stage, "batched", False) or as_table)):
            return False
    return True


def _formats_tables(dataset: Any) -> bool:
    return any(
        getattr(getattr(stage, "formatting", None), "is_table", False) is True for stage in _stages(dataset)
    )


def _stages(dataset: Any) -> Iterator[Any]:
    """Yield the stages, from the last to the sources."""
    found = [getattr(dataset, "_ex_iterable", None)]
    while found:
        stage = found.pop(0)
        if stage is None:
            continue
        yield stage
        inner = getattr(stage, "ex_iterable", None)
        found = [*([inner] if inner is not None else getattr(stage, "ex_iterables", ())), *found]


def _stage(stage: Any) -> list[Any]:
    settings = {
        name: value for name in _SETTINGS if type(value := getattr(stage, name, None)) in (bool, int, str)
    }
    generator = getattr(stage, "generator", None)
    if isinstance(generator, np.random.Generator):
        state = repr(sorted(generator.bit_generator.state.items(), key=str))
        settings["generator"] = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
    return [type(stage).__name__, settings]
