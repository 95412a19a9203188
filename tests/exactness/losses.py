"""What a resume could lose. Each spoils one part of a resumed training, to prove that the comparison notices."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from tests.exactness.trainings import Run

# Where torch's CPU generator says that it keeps a Gaussian back (torch 2.13).
_HAS_GAUSSIAN = 5040


@dataclass(frozen=True)
class Loss:
    """One way to lose state."""

    spoil: Callable[[Run], None]
    shows_in: str
    """The section, looked at without segue, in which it must show at the next boundary."""


def _python_gaussian(run: Run) -> None:
    version, internal, gaussian = random.getstate()
    assert gaussian is not None
    random.setstate((version, internal, None))


def _numpy_gaussian(run: Run) -> None:
    name, keys, position, has_gaussian, _ = np.random.get_state()
    assert has_gaussian
    np.random.set_state((name, keys, position, 0, 0.0))


def _torch_gaussian(run: Run) -> None:
    state = torch.get_rng_state()
    assert state[_HAS_GAUSSIAN] == 1
    state[_HAS_GAUSSIAN] = 0
    torch.set_rng_state(state)


def _absent_gradient(run: Run) -> None:
    assert run.net.occasional.grad is None
    run.net.occasional.grad = torch.zeros_like(run.net.occasional)


def _layout_of_a_gradient(run: Run) -> None:
    weight = run.net.convolution.weight
    assert weight.grad is not None
    assert not weight.grad.is_contiguous()
    weight.grad = weight.grad.contiguous()


def _pending_gradients(run: Run) -> None:
    for parameter in run.net.parameters():
        parameter.grad = None


def _tokens(run: Run) -> None:
    assert run.window is not None
    state = run.window.window_state()
    run.window.replace_window(replace(state, total_weight=state.total_weight + 1), run.window.sums())


def _count_of_microbatches(run: Run) -> None:
    assert run.window is not None
    state = run.window.window_state()
    run.window.replace_window(replace(state, microbatches=state.microbatches + 1), run.window.sums())


def _sums(run: Run) -> None:
    assert run.window is not None
    run.window.replace_window(run.window.window_state(), ())


def _averaged(run: Run) -> None:
    run.ema.n_averaged.zero_()


def _moments(run: Run) -> None:
    run.optimizer.state[run.net.mix.weight]["exp_avg"].zero_()


def _count_of_steps(run: Run) -> None:
    run.optimizer.state[run.net.mix.weight]["step"].sub_(1)


def _masters(run: Run) -> None:
    for parameter, slots in run.optimizer.state.items():
        slots["master"] = parameter.detach().float()  # as a program does that didn't save them


def _rate(run: Run) -> None:
    run.optimizer.param_groups[1]["lr"] *= 2


def _position_of_the_schedule(run: Run) -> None:
    run.scheduler.last_epoch -= 1


def _statistics(run: Run) -> None:
    run.net.norm.running_var.fill_(1)


def _transient_buffer(run: Run) -> None:
    run.net.num_forwards.zero_()


def _one_bit(run: Run) -> None:
    run.net.mix.weight.detach().view(torch.int32).bitwise_xor_(1)


LOSSES = {
    "the Python stream": Loss(lambda run: random.seed(0), "streams"),
    "the NumPy stream": Loss(lambda run: np.random.seed(0), "streams"),
    "the torch stream": Loss(lambda run: torch.manual_seed(0), "streams"),
    "Python's Gaussian": Loss(_python_gaussian, "streams"),
    "NumPy's Gaussian": Loss(_numpy_gaussian, "streams"),
    "torch's Gaussian": Loss(_torch_gaussian, "streams"),
    "the last bit of one layer": Loss(_one_bit, "model"),
    "running statistics": Loss(_statistics, "model"),
    "a non-persistent buffer": Loss(_transient_buffer, "model"),
    "the mode of a frozen part": Loss(lambda run: run.net.frozen.train(), "model"),
    "moments": Loss(_moments, "optimizers"),
    "a count of steps": Loss(_count_of_steps, "optimizers"),
    "masters": Loss(_masters, "optimizers"),
    "a learning rate": Loss(_rate, "optimizers"),
    "the position of the schedule": Loss(_position_of_the_schedule, "schedulers"),
    "pending gradients": Loss(_pending_gradients, "model"),
    "that a gradient is absent": Loss(_absent_gradient, "model"),
    "the layout of a gradient": Loss(_layout_of_a_gradient, "model"),
    "the average": Loss(_averaged, "ema"),
    "the order of the data": Loss(lambda run: run.order.rest.clear(), "order"),
    "tokens of the window": Loss(_tokens, "window"),
    "microbatches of the window": Loss(_count_of_microbatches, "window"),
    "sums of the window": Loss(_sums, "window"),
}
