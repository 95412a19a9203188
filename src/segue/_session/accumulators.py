"""The accumulators people make: windows that can be taken as a value and put back, also without a `Training`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from segue._capture.boundary import refuse_inside_backward
from segue._capture.gradients import (
    capture_window,
    check_lossless,
    check_trainable,
    check_window,
    plan_window,
)
from segue._capture.naming import named_parameters
from segue._capture.writes import run_all
from segue._record.window import WindowRecord
from segue._session.former_names import gradients_with_names_of_today
from segue._window.plain import PlainWindow
from segue._window.weighted import WeightedWindow
from segue._window.window import AccumulationWindow
from segue.errors import InvalidRecord, MismatchError


class Accumulator(AccumulationWindow):
    """A window as a value and back."""

    def to_record(self) -> WindowRecord:
        """Take the open window as a value, without closing it.

        Returns:
            Counters and sums by canonical parameter name, in host memory that only the record owns. What stands in
            `.grad` is not part of it.

        Raises:
            NotAtBoundary: Inside a backward.
            PendingGradientError: If there is a sum for a parameter that the model no longer has.

        Guarantees:
            Read-only. `load_record` gives every bit back.

        Cost:
            One copy of each sum into host memory; blocks until it is done.

        Collective:
            No.
        """
        refuse_inside_backward()
        return capture_window(self, named_parameters(self.model))

    def load_record(self, record: WindowRecord) -> None:
        """Put a recorded window in the place of this one. Inverse of `to_record`.

        The sums replace those that are there, and are never added to them.

        Args:
            record: From `to_record`, or `TrainingRecord.window`. Not changed, not shared with afterwards, may be loaded
                again.

        Raises:
            WindowError: If the record is of another kind, dtype, loss scale or size of window, or its counters
                contradict each other.
            StoreError: If stored bytes do not match their checksums.
            ContractMismatch: If a sum has no parameter here, only a frozen one, or one of another shape.
            InvalidRecord: If a sparse sum's indices are out of range.

        Guarantees:
            Everything is checked and all memory allocated before anything changes; after an exception the window is
            as it was.

        Cost:
            Two reads of each stored sum, and one copy to its parameter's device.

        Collective:
            No.
        """
        if not isinstance(record, WindowRecord):
            raise InvalidRecord(
                "not the record of a window", code="window.record", where="accumulator", expected="WindowRecord",
                found=type(record).__name__, hint="of a `TrainingRecord`, take `record.window`",
            )  # fmt: skip
        self.check_window(record.state)
        record.sums.verify()
        record = replace(record, sums=gradients_with_names_of_today(record.sums, self.model))
        parameters = named_parameters(self.model)
        findings = [
            *check_window(record, self, parameters),
            *check_lossless(record.sums, "window"),
            *check_trainable(record.sums, parameters, "window"),
        ]
        if findings:
            raise MismatchError.of(findings)
        # What stands in `.grad` is not part of the record. What this accumulator has handed out must not be added, now as
        # before; what it has not is new, whatever was handed out when the record was taken.
        names = {id(parameter): name for name, parameter in parameters.items()}
        standing = (names[id(parameter)] for parameter in self.handed_out() if id(parameter) in names)
        record = replace(record, sums=record.sums.in_own_dtypes(), handed_out=tuple(sorted(standing)))
        # Sums that are allocated in inference mode could never be added to outside of it (torch 2.13).
        with torch.inference_mode(False):
            run_all(plan_window(record, self, parameters))


class GradientAccumulator(Accumulator, PlainWindow):
    """Adds up the gradients of several microbatches outside `.grad`, in fp32 or fp64.

    Args:
        model: Whose gradients; every parameter that has one takes part, a tied one once.
        dtype: The dtype of the sums, `float32` or `float64`, whatever the parameters have.
        microbatches: How many fill a window, for `is_full`; `None` if the caller decides. A full window takes no
            more. A shorter one (at the end of an epoch) is divided by the number of microbatches that are in it.

    Raises:
        WindowError: If the dtype is another, or `microbatches` is not positive.

    Guarantees:
        A call that raises has changed nothing. Captured and restored bit for bit at any microbatch.

    Cost:
        The sums, in their dtype. Where gradients have another dtype, their memory stays for the next window.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype = torch.float32, microbatches: int | None = None
    ) -> None:
        super().__init__(model, dtype, microbatches)


class WeightedAccumulator(Accumulator, WeightedWindow):
    """Adds up gradients with a weight each (tokens, samples), and divides once by the total weight.

    Args:
        model: Whose gradients; every parameter that has one takes part, a tied one once.
        dtype: The dtype of the sums, `float32` or `float64`, whatever the parameters have.
        microbatches: How many fill a window, for `is_full`; `None` if the caller decides. A full window takes no more.
        loss_scale: One fixed factor that the caller puts into every loss, or `backward_sum` does; divided out once,
            at the end.

    Raises:
        WindowError: If an argument is out of range.

    Guarantees:
        A call that raises has changed nothing. The total weight is kept in double precision. Captured and restored
        bit for bit at any microbatch.

    Cost:
        The sums, in their dtype. Where gradients have another dtype, their memory stays for the next window.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype = torch.float32,
        microbatches: int | None = None,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(model, dtype, microbatches, loss_scale)
