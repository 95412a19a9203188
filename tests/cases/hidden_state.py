"""Programs of B14 and B15, each a process of its own: `python -m tests.cases.hidden_state NAME PLACE save|resume`."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD, Optimizer

import segue
from tests.cases.state import raw

ROOT = Path(__file__).resolve().parents[2]
BEFORE, AFTER = 5, 4


def run(name, place, mode):
    """Run one of the programs below to its end and return what it printed, parsed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.cases.hidden_state", name, str(place), mode],
        capture_output=True, text=True, cwd=ROOT, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Distance(Optimizer):
    """B14: a global distance, a count of steps, and the group that leads, in attributes."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})
        self.global_d, self.k = 1e-3, 0
        self.norm = torch.zeros(())
        self.lead = self.param_groups[0]

    @torch.no_grad()
    def step(self, closure=None):
        self.global_d *= 1.5
        self.k += 1
        self.lead["lr"] = self.global_d / self.k
        for group in self.param_groups:
            for parameter in group["params"]:
                self.norm += parameter.grad.square().sum()
                parameter.sub_(parameter.grad / (1 + self.norm), alpha=group["lr"])


def net(mode, width=4):
    torch.manual_seed(0 if mode == "save" else 1)  # another beginning, which the restore has to overwrite
    return nn.Linear(width, width)


def distance(mode):
    model = net(mode)
    optimizer = Distance([{"params": [model.weight]}, {"params": [model.bias]}])
    state = segue.StateOf(optimizer, "global_d", "k", "norm")
    return model, optimizer, segue.Training(model, optimizer, components={"distance": state})


def schedule_free(make, is_training):
    def program(mode):
        model = net(mode, 3)
        optimizer = make(model)
        return model, Switched(optimizer, is_training), segue.Training(model, optimizer)

    return program


class Switched:
    """A schedule-free optimizer that is in train mode for its steps, and in the mode of the case between them."""

    def __init__(self, optimizer, is_training):
        self.optimizer, self.is_training = optimizer, is_training

    def step(self):
        self.optimizer.train()
        self.optimizer.step()
        if not self.is_training:
            self.optimizer.eval()

    def modes(self):
        own = vars(self.optimizer).get("train_mode")
        return [own, *(group.get("train_mode") for group in self.optimizer.param_groups)]


def free(name, **options):
    def make(model):
        import schedulefree

        return getattr(schedulefree, name)(model.parameters(), lr=0.02, **options)

    return make


def wrapped(model):
    import schedulefree

    return schedulefree.ScheduleFreeWrapper(SGD(model.parameters(), lr=0.02, momentum=0.5), momentum=0.9)


FREE = {
    "AdamWScheduleFree": free("AdamWScheduleFree", warmup_steps=3),
    "SGDScheduleFree": free("SGDScheduleFree", warmup_steps=3),
    "RAdamScheduleFree": free("RAdamScheduleFree"),
    "ScheduleFreeWrapper": wrapped,
}
PROGRAMS = {"distance": distance} | {
    f"{name}-{mode}": schedule_free(make, mode == "train")
    for name, make in FREE.items()
    for mode in ("train", "eval")
}


def step(model, optimizer, index):
    width = model.in_features
    x = torch.randn(2, width, generator=torch.Generator().manual_seed(index))
    model(x).square().mean().backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None


def seen(model, optimizer):
    """Everything of a moment as one text: weights, what the optimizer keeps, and its mode."""
    inner = getattr(optimizer, "optimizer", optimizer)
    own = {
        name: raw(value) for name, value in sorted(vars(inner).items()) if name in ("global_d", "k", "norm")
    }
    state = [raw(dict(inner.state.get(p, {}))) for p in model.parameters()]
    options = [
        sorted((key, raw(value)) for key, value in group.items() if key != "params")
        for group in inner.param_groups
    ]
    weights = [raw(parameter) for parameter in model.parameters()]
    modes = optimizer.modes() if isinstance(optimizer, Switched) else None
    return hashlib.sha256(repr((weights, state, options, own, modes)).encode()).hexdigest()


def main(name, place, mode):
    model, optimizer, training = PROGRAMS[name](mode)
    if mode == "save":
        for index in range(BEFORE):
            step(model, optimizer, index)
        segue.save(training.capture(), place)
    else:
        training.restore(segue.load(place))
    moments = [seen(model, optimizer)]
    for index in range(BEFORE, BEFORE + AFTER):
        step(model, optimizer, index)
        moments.append(seen(model, optimizer))
    flags = optimizer.modes() if isinstance(optimizer, Switched) else None
    print(json.dumps({"moments": moments, "modes": flags}))


if __name__ == "__main__":
    main(*sys.argv[1:])
