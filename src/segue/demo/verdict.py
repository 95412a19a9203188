"""What differs between a run that was killed and the one that was not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from segue._record.digest import total
from segue.demo.trial import RunResult


@dataclass(frozen=True)
class Comparison:
    """A run beside the uninterrupted one, bit by bit."""

    num_losses: int
    num_losses_differing: int
    first_differing: int | None
    """The first microbatch whose loss differs, counted from 1."""
    largest_difference: float
    num_replayed: int
    """Losses that were computed again after a kill."""
    num_replayed_differing: int
    """How many of these came out otherwise than before the kill, or than in the uninterrupted run."""
    sections_differing: tuple[str, ...]
    """Sections of the final training whose digests differ."""

    @property
    def is_identical(self) -> bool:
        return not (self.num_losses_differing or self.num_replayed_differing or self.sections_differing)


def digest(result: RunResult) -> str:
    """Digest the final training and the sequence of losses of a run, as 32 hexadecimal digits."""
    losses = [values[-1] for _, values in sorted(result.losses.items())]
    hashed = xxhash.xxh3_128_hexdigest(json.dumps(losses).encode())
    return total({**result.digests, "losses": hashed})


def compare(whole: RunResult, other: RunResult) -> Comparison:
    """Compare a run with the uninterrupted one.

    Losses are compared as written, in hexadecimal: equal text, equal bits.
    """
    reference = {microbatch: values[-1] for microbatch, values in whole.losses.items()}
    microbatches = sorted(reference.keys() | other.losses.keys())
    differing = [
        microbatch for microbatch in microbatches if reference.get(microbatch) != _last(other, microbatch)
    ]
    earlier = [(microbatch, value) for microbatch, values in other.losses.items() for value in values[:-1]]
    replayed_differing = [
        microbatch
        for microbatch, value in earlier
        if value != reference.get(microbatch) or value != _last(other, microbatch)
    ]
    distances = [_distance(reference.get(microbatch), _last(other, microbatch)) for microbatch in differing]
    return Comparison(
        num_losses=len(microbatches),
        num_losses_differing=len(differing),
        first_differing=differing[0] if differing else None,
        largest_difference=max(distances, default=0.0),
        num_replayed=len(earlier),
        num_replayed_differing=len(replayed_differing),
        sections_differing=_sections_differing(whole.digests, other.digests),
    )


def _last(result: RunResult, microbatch: int) -> str | None:
    values = result.losses.get(microbatch)
    return values[-1] if values else None


def _distance(left: str | None, right: str | None) -> float:
    if left is None or right is None:
        return float("inf")
    return abs(float.fromhex(left) - float.fromhex(right))


def _sections_differing(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in [*left, *(right.keys() - left.keys())] if left.get(name) != right.get(name))
