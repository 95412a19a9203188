"""Whether the training stands between two microbatches, as far as can be told from outside."""

from __future__ import annotations

import torch
from torch.nn.utils import parametrize

from segue.errors import NotAtBoundary


def refuse_inside_backward() -> None:
    """Raise `NotAtBoundary` if this thread runs a backward, as from a gradient hook."""
    # The id of the graph task that this thread executes, -1 for none (torch 2.13).
    if torch._C._current_graph_task_id() != -1:
        raise NotAtBoundary(
            "a backward is in flight",
            where="autograd",
            hint="capture between microbatches, not from a gradient hook",
        )


def refuse_cached_weights() -> None:
    """Raise `NotAtBoundary` inside `torch.nn.utils.parametrize.cached()`, once it holds a weight.

    It would be neither captured nor replaced: what is restored would be computed with the weights of before (torch 2.13).
    """
    held = getattr(parametrize, "_cache", None)
    if held:
        raise NotAtBoundary(
            "parametrized weights are cached", where="torch.nn.utils.parametrize.cached()", found=f"{len(held)} weights",
            hint="capture and restore outside of the `with` block",
        )  # fmt: skip
