"""When a checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable


class Cadence:
    """Counts what has passed since the last save. Without any interval, every moment is due.

    Args:
        every_microbatches: Due when this many boundaries have passed.
        every_steps: Due when this many optimizer steps have passed, as told.
        every_seconds: Due when this much time has passed on the clock.
        clock: Monotonic seconds.

    Raises:
        TypeError: If an interval is no number.
        ValueError: If an interval is not positive.
    """

    def __init__(
        self,
        every_microbatches: int | None,
        every_steps: int | None,
        every_seconds: float | None,
        clock: Callable[[], float],
    ) -> None:
        for name, interval in (
            ("every_microbatches", every_microbatches), ("every_steps", every_steps), ("every_seconds", every_seconds)
        ):  # fmt: skip
            if interval is not None and not isinstance(interval, int | float):
                raise TypeError(f"{name} must be a number, not {interval!r}")
            if interval is not None and not interval > 0:
                raise ValueError(f"{name} must be positive, not {interval!r}")
        self._every_microbatches = every_microbatches
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._clock = clock
        self.reset(0, None)

    def reset(self, microbatch: int, step: int | None) -> None:
        """Count from here: a save, or the checkpoint that was resumed."""
        self._microbatch = microbatch
        self._step = step or 0
        self._seconds = self._clock()

    def is_due(self, microbatch: int, step: int | None) -> bool:
        """Tell whether any interval has passed.

        Raises:
            ValueError: If steps are counted and no step is given.
        """
        if self._every_steps is not None and step is None:
            raise ValueError("with every_steps, tell the step: save_if_due(state, step=...)")
        intervals = (
            (self._every_microbatches, microbatch - self._microbatch),
            (self._every_steps, (step or 0) - self._step),
            (self._every_seconds, self._clock() - self._seconds),
        )
        given = [passed >= interval for interval, passed in intervals if interval is not None]
        return any(given) if given else True
