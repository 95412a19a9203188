"""Random generators by their kind: how the state of one is read, tried, and set where it is.

Which are known: torch's, Python's (a subclass only where it draws from Python's own state), NumPy's bit generators, its
legacy generator with the Gaussian that is pending there, and seed sequences, whose counter of spawned children is state.
A NumPy `Generator` has no state beside its bit generator; but that has a seed sequence, which `spawn` moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.random import bit_generator as _numpy

from segue._capture.layouts import base_in
from segue._capture.plain import freeze
from segue._record.tensors import CapturedTensor
from segue._record.tree import same, thaw

_TORCH_CPU_BYTES: Final = 5056  # the cached normal included (torch 2.13)
_BIT_GENERATORS: Final = (
    np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64,
)  # fmt: skip
_MAX_DEPTH: Final = 4
_REFUSED = (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError, AssertionError)


class DoesNotFit(Exception):
    """A recorded state that a live generator can't take over, and why."""


@dataclass(frozen=True)
class GeneratorKind:
    """What can be done with the generators of one kind."""

    name: str
    """As records tell it."""
    read: Callable[[Any], Any]
    """Returns a copy of the state as a tree; draws nothing."""
    made: Callable[[Any, Any], Any]
    """Returns a new generator like a live one, made for the purpose, with a recorded state."""
    write: Callable[[Any, Any], None]
    """Sets a recorded state in a live generator."""

    def refuse_unfit(self, live: Any, state: Any) -> None:
        """Set a recorded state in a generator made for the purpose.

        Raises:
            DoesNotFit: If that is refused, or leaves another state.
        """
        try:
            found = self.read(self.made(live, state))
        except _REFUSED as error:
            raise DoesNotFit(str(error) or type(error).__name__) from error
        if not same(found, state):
            raise DoesNotFit("it is not taken over as it is")


def kind_of_generator(value: object) -> GeneratorKind | None:
    """Return what can be done with a generator; `None` for anything else, and for one whose state can't be told."""
    base = base_in(type(value), _BASES)
    if base is random.Random and not is_pythons_own(type(value)):
        return None
    bits: Any = value
    if base is np.random.Generator:
        bits = bit_generator_of(value)
    elif base is np.random.RandomState:
        bits = _legacy_bits(value)
    elif base is not np.random.BitGenerator:
        return None if base is None else _KINDS[base]
    return _KINDS[base] if type(bits) in _BIT_GENERATORS else None


def is_generator(value: object) -> bool:
    """Tell whether a value is a random generator of any kind, also one whose state can't be told."""
    return base_in(type(value), _BASES) is not None


def holds_only_generators(value: object, depth: int = 0) -> bool:
    """Tell whether a value is a random generator, or a list, tuple or dictionary of such and of nothing else."""
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:
        items: Any = value.values() if isinstance(value, dict) else value
        is_near = depth < _MAX_DEPTH  # some contain themselves
        return is_near and bool(items) and all(holds_only_generators(item, depth + 1) for item in items)
    return is_generator(value)


def is_pythons_own(cls: type) -> bool:
    """Tell whether a generator derived from Python's draws from the state that Python keeps, and from no other."""
    for name in ("random", "getrandbits", "getstate", "setstate"):
        owner = next(base for base in type.mro(cls) if name in vars(base))
        if owner not in random.Random.__mro__:
            return False
    return True


def source_of(value: object) -> object:
    """Return the object that a generator draws from: of a NumPy `Generator` its bit generator, of others themselves."""
    return bit_generator_of(value) if base_in(type(value), (np.random.Generator,)) else value


def is_global(value: object) -> bool:
    """Tell whether a generator is one of the global streams, which are captured as such."""
    held: list[object] = [torch.default_generator, getattr(random, "_inst", None), _numpy_global()]
    held.append(_legacy_bits(held[-1]))
    for device in ("cuda", "xpu", "mps"):
        module = getattr(torch, device, None)
        held.extend(getattr(module, "default_generators", ()))
        held.append(getattr(module, "_default_mps_generator", None))
    source = source_of(value)
    return any(source is each for each in held if each is not None)


def _numpy_global() -> Any:
    return np.random.mtrand._rand


def bit_generator_of(value: Any) -> Any:
    """Return the bit generator of a NumPy generator, or the one that it is."""
    return value.bit_generator if base_in(type(value), (np.random.Generator,)) else value


def _legacy_bits(value: Any) -> Any:
    return value._bit_generator


# torch


def _read_torch(generator: torch.Generator) -> dict[str, Any]:
    return {"device": generator.device.type, "state": freeze(generator.get_state(), "generator state")}


def _torch_state(generator: torch.Generator, state: Any) -> torch.Tensor:
    captured = state["state"]
    if state["device"] != generator.device.type:
        raise ValueError(f"it was on {state['device']}, here it is on {generator.device.type}")
    if not isinstance(captured, CapturedTensor) or captured.dtype is not torch.uint8:
        raise ValueError("not a generator state")
    if generator.device.type == "cpu" and captured.num_bytes != _TORCH_CPU_BYTES:
        raise ValueError(f"{captured.num_bytes} bytes instead of {_TORCH_CPU_BYTES}")
    return captured.to_host()


def _write_torch(generator: torch.Generator, state: Any) -> None:
    generator.set_state(_torch_state(generator, state))


def _made_torch(generator: torch.Generator, state: Any) -> torch.Generator:
    made = torch.Generator(generator.device)
    made.set_state(_torch_state(generator, state))
    return made


# Python


def read_python(generator: random.Random) -> dict[str, Any]:
    """Copy the state of a generator of Python's, the pending Gaussian included."""
    version, internal, gauss = random.Random.getstate(generator)
    state = np.array(internal, dtype=np.uint32)
    return {"version": version, "state": freeze(state, "python stream"), "gauss": gauss}


def write_python(generator: random.Random, state: Any) -> None:
    """Set the state of a generator of Python's."""
    if state["gauss"] is not None and type(state["gauss"]) is not float:
        raise ValueError("the pending Gaussian is no number")
    words = tuple(int(word) for word in thaw(state["state"]))
    random.Random.setstate(generator, (state["version"], words, state["gauss"]))


def _made_python(_live: object, state: Any) -> random.Random:
    made = random.Random()
    write_python(made, state)
    return made


# NumPy


def _read_bits(generator: Any) -> dict[str, Any]:
    bits = bit_generator_of(generator)
    return {**freeze(bits.state, "bit generator"), "seed_sequence": _read_seeds(_seeds_of(bits))}


def _seeds_of(bits: Any) -> Any:
    found = bits.seed_seq
    return found if type(found) is np.random.SeedSequence else None


def _write_bits(generator: Any, state: Any) -> None:
    bits, seeds = bit_generator_of(generator), state["seed_sequence"]
    live = _seeds_of(bits)
    if (seeds is None) != (live is None):
        raise ValueError("a seed sequence is on one side only")
    _set_bits(bits, {key: value for key, value in state.items() if key != "seed_sequence"})
    if live is not None:
        _write_seeds(live, seeds)


def _set_bits(bits: Any, state: dict[str, Any]) -> None:
    name = type(bits).__name__
    if state["bit_generator"] != name:
        raise ValueError(f"it was made by {state['bit_generator']}, here it is {name}")
    bits.state = thaw(state)


def _made_bits(generator: Any, state: Any) -> Any:
    live = bit_generator_of(generator)
    # Of the class of the live one, so nothing is looked up by a name that came from data.
    made = type(live)(np.random.SeedSequence(0) if _seeds_of(live) is not None else _NoSeeds())
    _write_bits(made, state)
    return made


class _NoSeeds(_numpy.ISeedSequence):
    """Stands for a seed sequence of the program's own, which is not looked into."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


def _read_legacy(generator: np.random.RandomState) -> dict[str, Any]:
    tree: dict[str, Any] = freeze(generator.get_state(legacy=False), "numpy stream")
    return tree


def _write_legacy(generator: np.random.RandomState, state: Any) -> None:
    name = type(_legacy_bits(generator)).__name__
    if state["bit_generator"] != name:
        raise ValueError(f"it was made by {state['bit_generator']}, here it is {name}")
    generator.set_state(thaw(state))


def _made_legacy(generator: np.random.RandomState, state: Any) -> np.random.RandomState:
    made = np.random.RandomState(type(_legacy_bits(generator))(0))
    _write_legacy(made, state)
    return made


def _read_seeds(seeds: Any) -> Any:
    return None if seeds is None else freeze(seeds.state, "seed sequence")


def _made_seeds(_live: object, state: Any) -> np.random.SeedSequence:
    made = np.random.SeedSequence(0)
    _write_seeds(made, state)
    return made


def _write_seeds(seeds: Any, state: Any) -> None:
    made = np.random.SeedSequence(**thaw(state))
    # As unpickling does it: in place, since others may hold the same sequence.
    seeds.__setstate__(made.__reduce__()[2])


_KINDS: Final[dict[type, GeneratorKind]] = {
    torch.Generator: GeneratorKind("torch.Generator", _read_torch, _made_torch, _write_torch),
    random.Random: GeneratorKind("random.Random", read_python, _made_python, write_python),
    np.random.RandomState: GeneratorKind("numpy.RandomState", _read_legacy, _made_legacy, _write_legacy),
    np.random.Generator: GeneratorKind("numpy.BitGenerator", _read_bits, _made_bits, _write_bits),
    np.random.BitGenerator: GeneratorKind("numpy.BitGenerator", _read_bits, _made_bits, _write_bits),
    np.random.SeedSequence: GeneratorKind("numpy.SeedSequence", _read_seeds, _made_seeds, _write_seeds),
}
_BASES: Final = tuple(_KINDS)
KIND_NAMES: Final = tuple(sorted({kind.name for kind in _KINDS.values()}))
