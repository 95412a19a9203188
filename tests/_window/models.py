"""A model whose gradients are set by hand, so that every sum can be computed in the head."""

import torch
from torch import nn


class Pair(nn.Module):
    """Two parameters of two elements each."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2, dtype=dtype))
        self.b = nn.Parameter(torch.zeros(2, dtype=dtype))

    def give(self, a=None, b=None):
        """Let each given number stand as the gradient of its parameter."""
        for parameter, value in ((self.a, a), (self.b, b)):
            if value is not None:
                parameter.grad = torch.full((2,), float(value), dtype=parameter.grad_dtype)

    def taken(self):
        """Take the gradients away, as lists; `None` where there is none."""
        found = [None if p.grad is None else p.grad.tolist() for p in (self.a, self.b)]
        self.zero_grad()
        return found


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def sparse_gradient():
    return torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)


def look(model, window):
    """Everything that a refusal must leave: counters, sums and gradients, in bits."""
    sums = [(id(parameter), str(total.dtype), bits(total)) for parameter, total in window.sums()]
    return window.window_state(), sums, [None if p.grad is None else bits(p.grad) for p in model.parameters()]
