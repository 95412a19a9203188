"""Where to kill: three random places, chosen so that each kind of moment occurs."""

from __future__ import annotations

import random
from collections.abc import Callable

from segue.demo.settings import Kill, RunSettings

# Files of a checkpoint in the order in which they are written. The kill lands when one of them would be created, so
# all before it are on disk and the attempt is certainly unfinished.
_FILES = ("training.safetensors", "state.json", "manifest.json", "commit")


def fewest_microbatches(run: RunSettings) -> int:
    """Return how long a run must be for three kills with all kinds of moments in it."""
    return _first(run) + 3 * run.save_every_microbatches * run.window_microbatches + run.window_microbatches


def plan_kills(run: RunSettings) -> tuple[Kill, ...]:
    """Choose three places in ascending order, one in each third of the run, by the run's seed.

    One is such that the checkpoint to continue from lies inside a window, with gradients pending; one is while a
    checkpoint is being written; one is anywhere.

    Raises:
        ValueError: If the run is too short.
    """
    if run.num_microbatches < fewest_microbatches(run):
        raise ValueError(f"at least {fewest_microbatches(run)} microbatches are needed")
    chance = random.Random(run.seed)
    moments = [_inside_window, _during_save, _anywhere]
    chance.shuffle(moments)
    first, last = _first(run), run.num_microbatches - run.window_microbatches
    bounds = [first + (last - first) * third // 3 for third in range(4)]
    return tuple(
        chance.choice(moment(range(low, high), run, chance))
        for moment, low, high in zip(moments, bounds[:-1], bounds[1:], strict=True)
    )


def continued_from(kill: Kill, run: RunSettings) -> int:
    """Return the microbatch of the last checkpoint that segue has when the kill lands."""
    done = kill.microbatch - 1
    return done - done % run.save_every_microbatches


def _first(run: RunSettings) -> int:
    # By then segue has a checkpoint and state dicts have been saved: neither starts again from nothing.
    return max(run.save_every_microbatches, run.window_microbatches) + 2


_Moment = Callable[[range, RunSettings, random.Random], list[Kill]]


def _inside_window(places: range, run: RunSettings, _chance: random.Random) -> list[Kill]:
    kills = [Kill(place) for place in places]
    return [kill for kill in kills if continued_from(kill, run) % run.window_microbatches]


def _during_save(places: range, run: RunSettings, chance: random.Random) -> list[Kill]:
    return [Kill(place, chance.choice(_FILES)) for place in places if not place % run.save_every_microbatches]


def _anywhere(places: range, _run: RunSettings, _chance: random.Random) -> list[Kill]:
    return [Kill(place) for place in places]
