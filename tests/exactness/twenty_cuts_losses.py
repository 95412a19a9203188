"""What a program loses: by forgetting to hand it in, or by spoiling it after the resume. Each must be noticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.exactness.twenty_cuts import Run

State = dict[str, Any]


def _nothing(run: Run, state: State) -> None:
    pass


@dataclass(frozen=True)
class Loss:
    """One way to lose state."""

    shows_in: str
    """A section in which it must show."""
    left_out: tuple[str, ...] = ()
    """What isn't handed in, in both processes."""
    spoil: Callable[[Run, State], None] = _nothing
    """What is done after the resume, where segue lets nobody forget."""
    mode: str = "fp16 autocast, scaler, fused"


def _parameters(run: Run, state: State) -> None:
    run.net.blocks[0].out.weight.detach().mul_(1.001)


def _buffers(run: Run, state: State) -> None:
    run.net.blocks[0].norm.reset_running_stats()


def _moments(run: Run, state: State) -> None:
    run.optimizer.state.clear()


def _steps(run: Run, state: State) -> None:
    for slots in run.optimizer.state.values():
        slots["step"].zero_()


def _rates(run: Run, state: State) -> None:
    for group in run.optimizer.param_groups:
        group["lr"], group["betas"] = 0.01, (0.9, 0.999)


def _schedule(run: Run, state: State) -> None:
    run.scheduler.last_epoch = 0


def _gradients(run: Run, state: State) -> None:
    run.optimizer.zero_grad()


def _absence(run: Run, state: State) -> None:
    assert run.net.occasional.grad is None
    run.net.occasional.grad = run.net.occasional.detach() * 0


def _sums(run: Run, state: State) -> None:
    assert run.window is not None
    run.window.replace_window(run.window.window_state(), ())


def _tokens(run: Run, state: State) -> None:
    state["tokens"] = 0


def _torch_generator(run: Run, state: State) -> None:
    run.net.noise.generator.manual_seed(1)


def _numpy_generator(run: Run, state: State) -> None:
    run.net.noise.numpy.bit_generator.state = np.random.default_rng(1).bit_generator.state


def _python_generator(run: Run, state: State) -> None:
    run.net.noise.python.seed(1)


LOSSES = {
    "the random streams": Loss("streams", ("rng",)),
    "the Python stream": Loss("streams", spoil=lambda run, state: random.seed(1)),
    "the NumPy stream": Loss("streams", spoil=lambda run, state: np.random.seed(1)),
    "the average": Loss("average", ("average",)),
    "the scaler": Loss("scaler", ("scaler",)),
    "the position in the data": Loss("state", ("data",)),
    "a generator of torch": Loss("own generators", spoil=_torch_generator),
    "a generator of NumPy": Loss("own generators", spoil=_numpy_generator),
    "a generator of Python": Loss("own generators", spoil=_python_generator),
    "parameters": Loss("model", spoil=_parameters),
    "buffers": Loss("model", spoil=_buffers),
    "moments": Loss("optimizer", spoil=_moments),
    "counts of steps": Loss("optimizer", spoil=_steps),
    "rates and betas": Loss("optimizer", spoil=_rates),
    "the schedule": Loss("scheduler", spoil=_schedule),
    "pending gradients": Loss("model", spoil=_gradients),
    "that a gradient is absent": Loss("model", spoil=_absence),
    "tokens of the window": Loss("state", spoil=_tokens),
    "sums of the window": Loss("window", spoil=_sums, mode="bf16 autocast, foreach"),
}
