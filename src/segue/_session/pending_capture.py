"""A capture as a future, for programs that go on at once, or await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.deferred import DeferredCopies, deferrable, deferring
from segue._capture.gate import StepGate
from segue._capture.transfer import Transfer, begin_transfer
from segue._record.training import TrainingRecord
from segue.errors import CaptureError


class PendingCapture(Future[TrainingRecord]):
    """The outcome of `Training.capture_async`: `result()` blocks for the record, `await` waits for it.

    It can't be cancelled: `cancel()` returns False, and of a task that is cancelled while it awaits, only the waiting
    ends. `done()` is True once it is decided whether the record is whole; `result`, `exception` and `await` decide,
    and so does a `step` that has waited.
    """

    def __init__(self, copies: DeferredCopies, gate: StepGate) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._copies = copies
        self._gate = (
            gate  # `step` waits for as long as anyone waits for this, also after the training itself is gone
        )

    def start(self, record: TrainingRecord) -> None:
        """Make the copies; the record is the result when they are complete."""

        def end(error: BaseException | None) -> None:
            if error is None:
                self.set_result(record)
            else:
                self.set_exception(error)

        self._copies.start(end)

    def result(self, timeout: float | None = None) -> TrainingRecord:
        """Return the record; waits for it, for `timeout` seconds at most."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what went wrong, or `None`; waits for it, for `timeout` seconds at most."""
        error = None if self._copies.is_orphaned else super().exception(timeout)
        if error is not None:
            return error
        try:
            self._copies.seal()
        except CaptureError as mutation:
            return mutation
        return None

    def done(self) -> bool:
        """Tell whether it has ended, well or not. Does not block."""
        if not super().done():
            return False
        self._copies.settle()
        return True

    def __await__(self) -> Generator[Any, None, TrainingRecord]:
        return asyncio.wrap_future(self).__await__()


class AsyncCaptures:
    """The captures of one training that go on beside it, one at a time.

    Args:
        optimizers: Those whose `step` waits.
        begin: Begins to copy a tensor.
    """

    def __init__(
        self, optimizers: list[Optimizer], begin: Callable[[torch.Tensor], Transfer] = begin_transfer
    ) -> None:
        self._optimizers = optimizers
        self._begin = begin
        self._gate = StepGate()

    def start(self, capture: Callable[[], TrainingRecord]) -> PendingCapture:
        """Capture, with the large copies deferred; what goes wrong is raised by the future.

        Waits for the copies of the one before, so that no more than two records are in memory by this.
        """
        self.settle()
        copies = DeferredCopies(deferrable(self._optimizers), self._begin)
        pending = PendingCapture(copies, self._gate)
        try:
            with deferring(copies):
                record = capture()
        except Exception as error:
            copies.abandon()
            pending.set_exception(error)
            return pending
        pending.start(record)
        # Not before: after Ctrl-C in between, `step` would wait for copies that nobody makes.
        if len(copies):
            self._gate.close(self._optimizers, copies)
        return pending

    def settle(self) -> None:
        """Wait for the copies that are under way and decide about them; raises nothing."""
        self._gate.wait()
