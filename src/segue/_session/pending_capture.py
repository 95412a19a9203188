"""A capture as a future, for programs that await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from segue._record.training import TrainingRecord


class PendingCapture(Future[TrainingRecord]):
    """The outcome of `Training.capture_async`: `result()` blocks for the record, `await` waits for it."""

    @classmethod
    def of(cls, capture: Callable[[], TrainingRecord]) -> PendingCapture:
        """Capture at once; what goes wrong is raised by `result()` or `await`."""
        pending = cls()
        try:
            pending.set_result(capture())
        except Exception as error:
            pending.set_exception(error)
        return pending

    def __await__(self) -> Generator[Any, None, TrainingRecord]:
        return asyncio.wrap_future(self).__await__()
