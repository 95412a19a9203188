"""A microbatch by its loss: what `backward_sum` reads before it runs anything, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from segue._window.refusals import FLOATS
from segue.errors import WindowError


@dataclass(frozen=True)
class SummedLoss:
    """What `WeightedAccumulator.backward_sum` did with one microbatch."""

    loss_sum: float
    """The summed loss as it was, without the loss scale; not finite if it was not."""
    weight: float
    """What the microbatch counts."""
    backward_ran: bool
    """False for weight 0, which runs no backward."""

    @property
    def mean(self) -> float:
        """The loss per unit of weight.

        Raises:
            WindowError: If the weight is 0.
        """
        if self.weight == 0:
            raise WindowError(
                "a microbatch without weight has no mean loss", code="window.mean", where="loss",
                expected="a positive weight", found=self.weight,
            )  # fmt: skip
        return self.loss_sum / self.weight


def read_both(loss_sum: torch.Tensor, weight: torch.Tensor) -> tuple[float, float]:
    """Read loss and weight in double precision, in one transfer to the host.

    Raises:
        WindowError: If one is not a float tensor of shape [1], or they are on two devices.
    """
    for name, tensor in (("loss_sum", loss_sum), ("weight", weight)):
        _refuse_misshapen(name, tensor)
    if loss_sum.device != weight.device:
        raise WindowError(
            "loss and weight are on two devices", code="window.loss", where="weight",
            expected=loss_sum.device, found=weight.device,
        )  # fmt: skip
    both = torch.cat([loss_sum.detach().double(), weight.detach().double()])
    loss, number = both.tolist()
    return loss, number


def _refuse_misshapen(name: str, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        what, expected, found = f"{name} must be a tensor", "torch.Tensor", type(tensor).__name__
    elif tensor.shape != (1,):
        what, expected, found = (
            f"{name} must have exactly one element and one dim",
            "(1,)",
            str(tuple(tensor.shape)),
        )
    elif tensor.dtype not in FLOATS:
        what, expected, found = f"{name} must be a real floating-point tensor", "float", str(tensor.dtype)
    else:
        return
    hint = "`loss.sum().reshape(1)` for the loss, `torch.tensor([num_tokens], dtype=torch.float64)` for the weight"
    raise WindowError(what, code="window.loss", where=name, expected=expected, found=found, hint=hint)


def refuse_unknown_leaves(loss_sum: torch.Tensor, parameters: Iterable[torch.Tensor]) -> None:
    """Raise `WindowError` if the loss would give a gradient to something that the model does not have.

    Such a gradient would be summed in its own `.grad` and never divided. What only comes to light during backward, in
    a reentrant activation checkpoint, is not seen. Tensors that are no parameters are the program's own affair: an input
    that requires grad is how activation checkpoints see to it that a frozen base passes gradients on.
    """
    own = {id(parameter) for parameter in parameters}
    for leaf in _leaves(loss_sum):
        if isinstance(leaf, nn.Parameter) and id(leaf) not in own:
            raise WindowError(
                "the loss has a gradient for a tensor that the model does not have", code="window.unknown",
                where="loss_sum", expected="parameters of the model", found=f"{leaf.dtype} {tuple(leaf.shape)}",
                hint="make the accumulator over a module that holds it too: `nn.ModuleList([model, loss])`",
            )  # fmt: skip


def _leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a backward would give a gradient to."""
    if tensor.grad_fn is None:
        if tensor.requires_grad:
            yield tensor
        return
    todo, seen = [tensor.grad_fn], {tensor.grad_fn}
    while todo:
        node = todo.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable  # type: ignore[attr-defined]  # not in the stubs (torch 2.13)
        new = {following for following, _ in node.next_functions if following is not None} - seen
        todo.extend(new)
        seen |= new
