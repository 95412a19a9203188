"""Optimizers wait in `step` for the copies of what they are about to write."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.deferred import DeferredCopies


class StepGate:
    """Lets `step` of all optimizers of one training wait for its deferred copies.

    The hooks stay where they are, and cost nothing while no copies are under way: taking one away in another thread
    would break a `step` that is just running its hooks.
    """

    def __init__(self) -> None:
        self._hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._copies: DeferredCopies | None = None

    @property
    def is_closed(self) -> bool:
        """Whether there are copies to wait for."""
        return self._copies is not None

    def close(self, optimizers: Iterable[Optimizer], copies: DeferredCopies) -> None:
        """Let every `step` from now on wait for these copies."""
        self._copies = copies
        for optimizer in optimizers:
            if optimizer not in self._hooked:
                # The hook outlives this object in the optimizer; it must not keep it alive.
                handle = optimizer.register_step_pre_hook(_hook(weakref.ref(self)))
                # Before the program's own hooks: they belong to `step`, and may write.
                optimizer._optimizer_step_pre_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
                self._hooked.add(optimizer)

    def wait(self) -> None:
        """Wait for the copies and decide about them; what is wrong with them is for their own future to raise."""
        copies = self._copies
        if copies is not None:
            copies.settle()
            self._copies = None  # only now: after Ctrl-C in mid-wait, the next `step` has to wait again


def _hook(this: weakref.ref[StepGate]) -> Any:
    # A compiled step runs its hooks too; it is not to be compiled into threads and locks (torch 2.13).
    wait_uncompiled = torch.compiler.disable(StepGate.wait)  # type: ignore[no-untyped-call]

    def wait(_optimizer: object, _args: Any, _kwargs: Any) -> None:
        gate = this()
        if gate is not None and gate.is_closed:
            wait_uncompiled(gate)

    return wait
