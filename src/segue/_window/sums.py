"""Gradient sums in fp32 or fp64, taken out of `.grad` and put back there once.

bf16 sums stall: 1024 plus eight times 0.125 stays 1024. So each microbatch's gradient is cast to the work dtype
before it is added, and cast back once, after the division.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from segue.errors import WindowError

WORK_DTYPES = (torch.float32, torch.float64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class GradientSums:
    """One running sum per parameter that has had a gradient in this window; absent stays absent."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        if dtype not in WORK_DTYPES:
            raise WindowError(
                "sums are kept in float32 or float64", code="window.dtype", where="accumulator", found=dtype
            )
        self.dtype = dtype
        self._model = model
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        self._handed_out: dict[nn.Parameter, weakref.ref[torch.Tensor]] = {}

    def check_incoming(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the gradients that stand in `.grad`, after checking all of them.

        Raises:
            WindowError: If one is sparse, no float, part of a graph, or still the one that `finish` handed out.
        """
        incoming = []
        for name, parameter in self._model.named_parameters():
            gradient = parameter.grad
            if gradient is not None:
                self._check(name, parameter, gradient)
                incoming.append((parameter, gradient))
        return incoming

    def _check(self, name: str, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        where = f"gradient of {name}"
        handed_out = self._handed_out.get(parameter)
        if handed_out is not None and handed_out() is gradient:
            raise WindowError(
                "the gradient of the last window is still there", code="window.not_consumed", where=where,
                hint="call `optimizer.zero_grad()` after `optimizer.step()`, with set_to_none=True (the default)",
            )  # fmt: skip
        if (
            type(gradient) is not torch.Tensor
            or gradient.layout is not torch.strided
            or gradient.dtype not in _FLOATS
        ):
            found = f"{type(gradient).__name__}, {gradient.layout}, {gradient.dtype}"
            raise WindowError(
                "this kind of gradient can't be summed yet", code="window.gradient", where=where, found=found
            )
        if gradient.requires_grad:
            raise WindowError(
                "a gradient that is part of a graph can't be summed", code="window.graph", where=where
            )

    def add(self, incoming: Iterable[tuple[nn.Parameter, torch.Tensor]], multiplier: float) -> None:
        """Add checked gradients, each times a factor, and take them out of `.grad`."""
        taken: set[int] = set()
        with torch.no_grad():
            for parameter, gradient in incoming:
                self._add(parameter, gradient, multiplier, id(gradient) not in taken)
                taken.add(id(gradient))
                parameter.grad = None

    def _add(self, parameter: nn.Parameter, gradient: torch.Tensor, multiplier: float, is_ours: bool) -> None:
        term = gradient.to(self.dtype)
        if multiplier != 1.0:
            term = term * multiplier
        total = self._sums.get(parameter)
        if total is not None:
            total.add_(term)
        else:
            # Taken without a copy where it is ours alone; a view (a bucket of DDP) will be written again, and one
            # tensor may stand in the `.grad` of two parameters.
            is_shared = term._is_view() or not is_ours
            self._sums[parameter] = term.clone() if term is gradient and is_shared else term

    def drop(self, incoming: Iterable[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Take checked gradients out of `.grad` without adding them."""
        for parameter, _ in incoming:
            parameter.grad = None

    def hand_out(self, divisors: Sequence[float]) -> None:
        """Divide every sum by each divisor in turn, cast it once, put it in `.grad`, and begin anew.

        Divided one after the other in the work dtype, so that a product of divisors can't overflow.

        Raises:
            WindowError: If a gradient stands in `.grad` that was never added; nothing has changed then.
        """
        self._refuse_standing()
        targets = {parameter: self._target(parameter, total) for parameter, total in self._sums.items()}
        with torch.no_grad():
            for parameter, total in self._sums.items():
                for divisor in divisors:
                    if divisor != 1.0:
                        total.div_(divisor)
                target = targets[parameter]
                if target is not total:
                    target.copy_(total)
                parameter.grad = target
        self._handed_out = {parameter: weakref.ref(target) for parameter, target in targets.items()}
        self._sums = {}

    def _refuse_standing(self) -> None:
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                raise WindowError(
                    "a gradient was never added to the window", code="window.not_added", where=f"gradient of {name}",
                    hint="add each microbatch after its backward, before the window is finished",
                )  # fmt: skip

    def _target(self, parameter: nn.Parameter, total: torch.Tensor) -> torch.Tensor:
        dtype = parameter.grad_dtype  # the parameter's own by default; None admits any (torch 2.13)
        return total if dtype in (None, total.dtype) else torch.empty_like(total, dtype=dtype)

    @property
    def pending(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """The live sums, in the model's order of parameters: who adds up over them must not see in which they came."""
        places = {parameter: place for place, parameter in enumerate(self._model.parameters())}
        return sorted(self._sums.items(), key=lambda item: places.get(item[0], len(places)))

    @property
    def handed_out(self) -> list[nn.Parameter]:
        """The parameters whose `.grad` is still what the last window handed out."""
        return [
            parameter
            for parameter, handed_out in self._handed_out.items()
            if parameter.grad is not None and handed_out() is parameter.grad
        ]

    def replace(
        self, sums: Iterable[tuple[nn.Parameter, torch.Tensor]], handed_out: Iterable[nn.Parameter]
    ) -> None:
        """Take over other sums; what was there is dropped, never added to."""
        self._sums = dict(sums)
        self._handed_out = {
            parameter: weakref.ref(parameter.grad) for parameter in handed_out if parameter.grad is not None
        }
