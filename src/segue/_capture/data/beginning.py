"""The random streams as they stood when a pass began.

A sampler that saves nothing has drawn its order at the beginning of the pass. Drawn again from the streams as they are
in the middle, it is another order; so they are kept from the beginning, put back while the iterator is built, and the
order comes out as it was. Where the streams stand now is put back after that, last of all.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from segue._capture.plain import freeze
from segue._capture.reached import reached
from segue._capture.rng import RngStreams
from segue._capture.writes import run_all
from segue._record.tensors import CapturedTensor
from segue._record.tree import thaw

_STREAMS = ("python", "numpy", "torch")
_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def take(loader: Any) -> dict[str, Any]:
    """Copy the global streams, and those of the generators that a loader holds, by their paths."""
    return {
        "streams": _global(),
        "generators": {path: state_of(value, path) for path, value in generators(loader)},
    }


def put(beginning: Mapping[str, Any], loader: Any) -> None:
    """Set all of them as they were."""
    _set_global(beginning["streams"])
    states = beginning["generators"]
    for path, value in generators(loader):
        if path in states:
            _set(value, states[path])


def wrong(beginning: Any, loader: Any) -> str | None:
    """Tell what is wrong with a beginning that a record holds, as a clause; set in generators made for the purpose."""
    if type(beginning) is not dict or beginning.keys() != {"streams", "generators"}:
        return "the streams of the pass's beginning are none"
    streams, states = beginning["streams"], beginning["generators"]
    if type(streams) is not dict or set(streams) != set(_STREAMS) or type(states) is not dict:
        return "the streams of the pass's beginning are none"
    for finding in RngStreams().check({**streams, "accelerators": {}}):
        return finding.what
    live = dict(generators(loader))
    for path in sorted(live.keys() | states.keys(), key=str):
        if path not in states or path not in live:
            return f"a random generator of the loader is on one side only: {path}"
        try:
            _set(_like(live[path]), states[path])
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            return f"the state of a random generator does not fit here ({path}): {error}"
    return None


@contextlib.contextmanager
def left_alone(loader: Any) -> Iterator[None]:
    """Put the streams back behind what happens inside: it draws where the uninterrupted run drew nothing."""
    before = take(loader)
    try:
        yield
    finally:
        put(before, loader)


def _global() -> dict[str, Any]:
    streams = RngStreams().capture()
    return {name: streams[name] for name in _STREAMS}


def _set_global(streams: Mapping[str, Any]) -> None:
    run_all(RngStreams().plan({**streams, "accelerators": {}}))


def generators(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield the random generators that a loader holds, by their paths."""
    for item in reached({"loader": loader}):
        # What belongs to an iterator is gone in a new process, and was drawn from what is found here.
        if isinstance(item.value, _KINDS) and "._iterator" not in item.path:
            yield item.path, item.value


def state_of(generator: Any, where: str) -> Any:
    """Return a copy of where a generator stands."""
    if isinstance(generator, torch.Generator):
        return freeze(generator.get_state(), where)
    if isinstance(generator, random.Random):
        return freeze(list(generator.getstate()), where)
    if isinstance(generator, np.random.Generator):
        return freeze(dict(generator.bit_generator.state), where)
    return freeze(generator.get_state(legacy=False), where)


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        if not isinstance(state, CapturedTensor) or state.dtype is not torch.uint8:
            raise ValueError("not a generator's state")
        generator.set_state(state.to_host())
    elif isinstance(generator, random.Random):
        generator.setstate(tuple(state))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = thaw(state)
    else:
        generator.set_state(thaw(state))


def _like(generator: Any) -> Any:
    """Make a generator of the same kind, to try a state in."""
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device)
    if isinstance(generator, np.random.Generator):
        return np.random.Generator(type(generator.bit_generator)())
    if isinstance(generator, np.random.RandomState):
        return np.random.RandomState()
    return random.Random()
