"""Whether the training stands between two microbatches, as far as can be told from outside."""

from __future__ import annotations

import torch

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
