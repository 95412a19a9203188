"""Gradient sums in fp32 or fp64, taken out of `.grad` and put back there once.

bf16 sums stall: 1024 plus eight times 0.125 stays 1024. So each microbatch's gradient is cast to the work dtype
before it is added, and cast back once, after the division.

A first gradient of the work dtype becomes the sum, and such a sum becomes the `.grad` that is handed out: neither is
copied, and no memory stays behind. Sums of another dtype than the gradients keep their memory for the next window,
and are handed out in that of the last microbatch's gradients where it is known to be the last. So nothing is
allocated after the first window but what backward allocates anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from segue._window import sparse
from segue._window.arithmetic import Arithmetic, copy_each
from segue._window.microbatch import Microbatch, Terms, checked_microbatch
from segue._window.ownership import are_ours_alone
from segue._window.refusals import FLOATS, refuse_standing, refuse_stranger, refuse_unfit_sum
from segue._window.running import RunningSum
from segue._window.walk import ModelWalk
from segue.errors import WindowError

WORK_DTYPES = (torch.float32, torch.float64)

Held = tuple[RunningSum, torch.Tensor]
"""A running sum and its total."""


class GradientSums:
    """One running sum per parameter that has had a gradient in this window; absent stays absent."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        if dtype not in WORK_DTYPES:
            raise WindowError(
                "sums are kept in float32 or float64", code="window.dtype", where="accumulator",
                expected=WORK_DTYPES, found=dtype,
                hint="the number of microbatches is given by name: `microbatches=4`" if isinstance(dtype, int) else None,
            )  # fmt: skip
        self.model = model
        self.dtype = dtype
        self._arithmetic = Arithmetic(dtype)
        self._walk: ModelWalk | None = None
        self._running: list[RunningSum] = []
        self._strangers: list[RunningSum] = []

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The model's distinct parameters."""
        return [running.parameter for running in self._look()]

    def check_microbatch(self) -> Microbatch:
        """Return the gradients that stand in `.grad`, after checking all of them.

        Raises:
            WindowError: If one can't be summed, or is still what the last window handed out.
        """
        microbatch = checked_microbatch(self._look(), self.dtype)
        self._refuse_strangers()
        return microbatch

    def _look(self) -> list[RunningSum]:
        """Return the running sums of the model's parameters as they are now, in the model's order."""
        if self._walk is None or not self._walk.is_current():
            known = {id(running.parameter): running for running in [*self._running, *self._strangers]}
            self._walk = ModelWalk(self.model)
            self._running = [
                known.pop(id(parameter)) if id(parameter) in known else RunningSum(name, parameter)
                for name, parameter in self._walk.parameters
            ]
            self._strangers = [running for running in known.values() if running.total is not None]
        return self._running

    def _refuse_strangers(self) -> None:
        for running in self._strangers:
            refuse_stranger(running)

    def add(self, microbatch: Microbatch, weight: float, *, fills: bool = False) -> None:
        """Add checked gradients, each times its weight, and take them out of `.grad`.

        Args:
            microbatch: From `check_microbatch`.
            weight: Rounded to the work dtype.
            fills: Whether the window is handed out next, in the memory of these gradients if it may be.
        """
        first, direct, cast = microbatch.first, microbatch.direct, microbatch.cast
        with _computing():
            begun = self._first_totals(first)
            replaced = self._sparse_totals(microbatch.sparse, weight)
            kept = self._reusable(cast) if fills else []
            through_scratch = cast if weight == 1.0 else direct + cast
            groups = self._arithmetic.grouped(_totals(through_scratch), through_scratch.gradients)
            # All memory is there and all checks are made: what follows can't fail half way.
            self._arithmetic.begin(begun, first.gradients, weight)
            if weight == 1.0:
                self._arithmetic.add(_totals(direct), direct.gradients)
            self._arithmetic.add_terms(groups, weight)
        for running, total in zip(first.running, begun, strict=True):
            running.hold(total)
        for running, total in zip(microbatch.sparse.running, replaced, strict=True):
            running.hold(total)
        for running, gradient in kept:
            running.kept = gradient
        self.drop(microbatch)

    def _first_totals(self, first: Terms) -> list[torch.Tensor]:
        """Return where first sums are to be: the gradient itself, or memory to copy it to."""
        alone = are_ours_alone(first.gradients, (self.dtype,))
        return [
            gradient if is_ours_alone else self._memory_for(running, gradient)
            for running, gradient, is_ours_alone in zip(first.running, first.gradients, alone, strict=True)
        ]

    def _memory_for(self, running: RunningSum, gradient: torch.Tensor) -> torch.Tensor:
        spare, running.spare = running.spare, None
        if spare is not None and _has_place_of(spare, gradient):
            return spare
        return torch.empty_like(gradient, dtype=self.dtype)

    def _sparse_totals(self, terms: Terms, weight: float) -> list[torch.Tensor]:
        """Return the new sums where the old one or the gradient is sparse."""
        return [
            sparse.sum_of(running.total, sparse.term_of(gradient, self.dtype, weight))
            for running, gradient in zip(terms.running, terms.gradients, strict=True)
        ]

    def _reusable(self, cast: Terms) -> list[Held]:
        """Return the gradients whose memory nobody else knows of, where sums are of another dtype."""
        alone = are_ours_alone(cast.gradients, FLOATS)
        found = zip(cast.running, cast.gradients, alone, strict=True)
        return [(running, gradient) for running, gradient, is_ours_alone in found if is_ours_alone]

    def drop(self, microbatch: Microbatch) -> None:
        """Take gradients out of `.grad`."""
        for terms in microbatch.all:
            for running in terms.running:
                running.parameter.grad = None

    def drop_standing(self) -> None:
        """Take all gradients out of `.grad`, whatever they are."""
        for running in self._look():
            running.parameter.grad = None

    def refuse_standing(self) -> None:
        """Raise `WindowError` if any gradient stands in `.grad`."""
        for running in self._look():
            gradient = running.parameter.grad
            if gradient is not None:
                refuse_standing(running, gradient)

    def hand_out(self, divisors: Sequence[float]) -> None:
        """Divide every sum by each divisor in turn, cast it once, put it in `.grad`, and begin anew.

        Divided one after the other in the work dtype, so that a product of divisors can't overflow.

        Raises:
            WindowError: If a gradient stands in `.grad` that was never added, or a sum no longer fits its parameter;
                nothing has changed then.
        """
        self.refuse_standing()
        self._refuse_strangers()
        held = self._held()
        for running, total in held:
            refuse_unfit_sum(running, total)
        with _computing():
            finished = [self._finished(running, total, divisors) for running, total in held]
            # All memory is there: what follows can't fail half way.
            strided = [place for place, (_, total) in enumerate(held) if not total.is_sparse]
            totals = [held[place][1] for place in strided]
            for divisor in divisors:
                self._arithmetic.divide(totals, divisor)
            cast = [place for place in strided if finished[place] is not held[place][1]]
            copy_each([finished[place] for place in cast], [held[place][1] for place in cast])
        for running in self._running:
            running.handed_out = None
        for (running, _), gradient in zip(held, finished, strict=True):
            running.hand_out(gradient)

    def _held(self) -> list[Held]:
        return [(running, running.total) for running in self._look() if running.total is not None]

    def _finished(self, running: RunningSum, total: torch.Tensor, divisors: Sequence[float]) -> torch.Tensor:
        """Return what will stand in `.grad`: a finished sparse gradient, else memory that is still to be filled."""
        dtype = running.parameter.grad_dtype  # the parameter's own by default; None admits any (torch 2.13)
        if total.is_sparse:
            return sparse.finished(total, divisors, dtype or total.dtype)
        if dtype is None or dtype is total.dtype:
            return total
        kept = running.kept
        if kept is not None and kept.dtype is dtype and _has_place_of(kept, total):
            return kept
        return torch.empty_like(total, dtype=dtype)

    @property
    def pending(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """The live sums, in the model's order of parameters: who adds up over them must not see in which they came."""
        held = self._held() + [(running, running.total) for running in self._strangers]
        return [(running.parameter, total) for running, total in held if total is not None]

    @property
    def handed_out(self) -> list[nn.Parameter]:
        """The parameters whose `.grad` is still what the last window handed out."""
        return [
            running.parameter
            for running in self._look()
            if running.parameter.grad is not None and running.has_handed_out(running.parameter.grad)
        ]

    def replace(
        self, sums: Iterable[tuple[nn.Parameter, torch.Tensor]], handed_out: Iterable[nn.Parameter]
    ) -> None:
        """Take over other sums; what was there is dropped, never added to."""
        sums = list(sums)
        known = {id(running.parameter): running for running in self._look()}
        for running in known.values():
            running.clear()
        self._strangers = []
        for parameter, total in sums:
            if id(parameter) not in known:
                known[id(parameter)] = RunningSum("a parameter of another model", parameter)
                self._strangers.append(known[id(parameter)])
            known[id(parameter)].hold(total)
        for parameter in handed_out:
            if id(parameter) in known:
                known[id(parameter)].mark_handed_out()


@contextmanager
def _computing() -> Iterator[None]:
    # What is allocated in inference mode could never be added to outside of it (torch 2.13).
    with torch.inference_mode(False), torch.no_grad():
        yield


def _totals(terms: Terms) -> list[torch.Tensor]:
    return [running.total for running in terms.running if running.total is not None]


def _has_place_of(memory: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Tell whether memory lies as a fresh one for this tensor would, so that no layout depends on reuse."""
    # A tensor with gaps or overlaps is equal to no memory of ours, all of which is dense.
    return (memory.shape, memory.stride(), memory.device) == (tensor.shape, tensor.stride(), tensor.device)
