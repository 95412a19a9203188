"""The programs of B18, B23 and B25: `python -m tests.cases.scheduler_state_programs begin|resume FOLDER`."""

import sys

import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

import segue
from tests.cases.schedule_runs import Program, Run, main


def trained(optimizer_of, make_schedule, *, move=None, components_of=None):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = optimizer_of(model.parameters())
    made = make_schedule(optimizer)
    scheduler = None if components_of else made
    components = components_of(made) if components_of else None
    training = segue.Training(model, optimizer, scheduler, components=components)

    def advance(step):
        model(torch.randn(2, 3)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        made.step() if move is None else move(made, step)

    return Run(
        model, optimizer, scheduler, training, advance, lambda: vars_of(made) if components_of else None
    )


def vars_of(value):
    return {name: each for name, each in vars(value).items() if name != "group"}


def sequential(optimizer, **options):
    constant = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=20)
    exponential = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return lr_scheduler.SequentialLR(optimizer, [constant, exponential], milestones=[3], **options)


def chained(optimizer, **options):
    return lr_scheduler.ChainedScheduler(
        [
            lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=3, **options),
            lr_scheduler.ExponentialLR(optimizer, 0.9, **options),
        ]
    )


SCHEDULES = {
    "SequentialLR": sequential,
    "ExponentialLR": lambda optimizer, **options: lr_scheduler.ExponentialLR(optimizer, 0.9, **options),
    "CosineAnnealingWarmRestarts": lambda optimizer, **options: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2, **options),
    "MultiplicativeLR": lambda optimizer, **options: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9, **options),
    "ChainedScheduler": chained,
}  # fmt: skip


def fresh(name):
    return lambda: trained(lambda parameters: SGD(parameters, lr=1.0), SCHEDULES[name])


def by_last_epoch(name):
    """Built as people do who resume by `last_epoch`: over an optimizer that is told the present rate, and where it began."""

    def optimizer_of(parameters):
        optimizer = SGD(parameters, lr=1.0)
        optimizer.param_groups[0].update(initial_lr=1.0, lr=PRESENT[name])
        return optimizer

    return lambda: trained(optimizer_of, lambda optimizer: SCHEDULES[name](optimizer, last_epoch=4))


# The rates that the five have in epoch 4; a program would have them from its log.
PRESENT = {
    "SequentialLR": 0.9, "ExponentialLR": 0.9**4, "CosineAnnealingWarmRestarts": 0.9330127018922194,
    "MultiplicativeLR": 0.9**4, "ChainedScheduler": 0.9**4,
}  # fmt: skip


METRICS = (1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95)


def plateau(**options):
    return lambda: trained(
        lambda parameters: SGD(parameters, lr=1.0),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(
            optimizer, **{"patience": 2, "cooldown": 1, **options}
        ),
        move=lambda scheduler, step: scheduler.step(METRICS[step]),
    )


class Decay(LRScheduler):
    """Moves the weight decay, and leaves the rate."""

    def __init__(self, optimizer, begin, end, steps):
        self.begin, self.end, self.steps = begin, end, steps
        super().__init__(optimizer)

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self):
        super().step()
        done = min(self.last_epoch / self.steps, 1)
        for group in self.optimizer.param_groups:
            group["weight_decay"] = self.begin + (self.end - self.begin) * done


class OwnDecay:
    """The same as an object of one's own."""

    def __init__(self, group, begin, end, steps):
        self.group, self.begin, self.end, self.steps, self.done = group, begin, end, steps, 0
        self.apply()

    def apply(self):
        self.group["weight_decay"] = self.begin + (self.end - self.begin) * min(self.done / self.steps, 1)

    def step(self):
        self.done += 1
        self.apply()

    def state_dict(self):
        return {"begin": self.begin, "end": self.end, "steps": self.steps, "done": self.done}

    def load_state_dict(self, state):
        vars(self).update(state)
        self.apply()


class AppliesTooEarly(OwnDecay):
    def load_state_dict(self, state):
        self.done = state["done"]
        self.apply()  # with what the program asked for, before that is restored
        vars(self).update(state)


def decaying(begin, end):
    return lambda: trained(
        lambda parameters: AdamW(parameters, lr=0.1), lambda optimizer: Decay(optimizer, begin, end, 10)
    )


def own(cls, begin, end):
    return lambda: trained(
        lambda parameters: AdamW(parameters, lr=0.1),
        lambda optimizer: cls(optimizer.param_groups[0], begin, end, 10),
        components_of=lambda made: {"decay": made},
    )


PROGRAMS = {
    **{
        name: Program(fresh(name), {"fresh": fresh(name), "last_epoch": by_last_epoch(name)})
        for name in SCHEDULES
    },
    "plateau": Program(
        plateau(),
        {"same": plateau(), "mode": plateau(mode="max"), "threshold": plateau(threshold=0.1), "factor": plateau(factor=0.5)},
    ),
    "decay": Program(decaying(0.0, 0.4), {"same": decaying(0.0, 0.4), "another": decaying(0.1, 0.1)}, steps=5),
    "own decay": Program(
        own(OwnDecay, 0.0, 0.4),
        {
            "same": own(OwnDecay, 0.0, 0.4), "end": own(OwnDecay, 0.0, 0.8), "another": own(OwnDecay, 0.1, 0.1),
            "accepted": own(OwnDecay, 0.1, 0.1),
        },
        {"accepted": ["optimizer.optimizer.weight_decay"]}, steps=5,
    ),
    "early decay": Program(
        own(AppliesTooEarly, 0.0, 0.4),
        {"same": own(AppliesTooEarly, 0.0, 0.4), "end": own(AppliesTooEarly, 0.0, 0.8)}, steps=5,
    ),
}  # fmt: skip

if __name__ == "__main__":
    main(PROGRAMS, *sys.argv[1:])
