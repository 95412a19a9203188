"""The programs of B21 and B22: `python -m tests.cases.callable_programs begin|resume FOLDER`."""

import argparse
import sys

import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

import segue
from tests.cases.schedule_runs import Program, Run, main

BOX = {"cap": 1.0}
args = argparse.Namespace(warmup=4, output_dir="runs/a")
by_globals = lambda epoch: min(BOX["cap"], (epoch + 1) / args.warmup)  # noqa: E731


def factor_of(box):
    return lambda epoch: min(box["cap"], 1 / (epoch + 1))


class Factor:
    def __init__(self, cap):
        self.cap, self.asked = cap, []

    def __call__(self, epoch):
        self.asked.append(epoch)
        return min(self.cap, 1 / (epoch + 1))


def trained(make_schedule, *, at_one=lambda: None, also=lambda: None, components=None, rate=1.0):
    """A run of SGD under a schedule; after epoch 1 something may be done to it."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=rate, momentum=0.5)
    scheduler = make_schedule(optimizer)
    training = segue.Training(model, optimizer, scheduler, components=components)

    def advance(step):
        model(torch.randn(2, 3)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step == 1:
            at_one()

    return Run(model, optimizer, scheduler, training, advance, also)


def closure(cap, *, lowered, is_registered):
    def build():
        box = {"cap": cap}
        components = {"box": segue.StateOf(box, "cap")} if is_registered else None
        return trained(
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor_of(box)), components=components,
            at_one=(lambda: box.update(cap=0.05)) if lowered else lambda: None, also=lambda: dict(box),
        )  # fmt: skip

    return build


def another_function():
    return trained(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch))


def called(cap, *, lowered=False):
    def build():
        factor = Factor(cap)
        return trained(
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor),
            at_one=(lambda: setattr(factor, "cap", 0.05)) if lowered else lambda: None,
        )

    return build


def of_a_script(*, cap=1.0, warmup=4, output_dir="runs/a", lowered=False, is_registered=False):
    def build():
        BOX["cap"], args.warmup, args.output_dir = cap, warmup, output_dir
        components = {"box": segue.StateOf(BOX, "cap")} if is_registered else None
        return trained(
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, by_globals), components=components,
            at_one=(lambda: BOX.update(cap=0.05)) if lowered else lambda: None, also=lambda: dict(BOX),
        )  # fmt: skip

    return build


def cyclic(gamma=0.9, **options):
    def build():
        return trained(
            lambda optimizer: lr_scheduler.CyclicLR(
                optimizer, 0.01, 0.1, 3, gamma=gamma, **{"mode": "exp_range", **options}
            )
        )

    return build


def scaled(share):
    return cyclic(scale_fn=lambda x: share**x, scale_mode="iterations")


class Unpicklable:
    """It can be held, and not be copied or pickled."""

    def _refuse(self, *_):
        raise AssertionError("the optimizer is none of the scheduler's state")

    __reduce__ = __reduce_ex__ = __getstate__ = __deepcopy__ = __copy__ = _refuse


def over_an_unpicklable_optimizer():
    def one_cycle(optimizer):
        optimizer.on_step = lambda: None
        optimizer.handle = Unpicklable()
        return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    return trained(one_cycle)


PROGRAMS = {
    "closure": Program(closure(1.0, lowered=True, is_registered=False), {}),
    "closure-unmoved": Program(
        closure(1.0, lowered=False, is_registered=False),
        {"same": closure(1.0, lowered=False, is_registered=False), "lowered": closure(0.05, lowered=False, is_registered=False)},
    ),
    "closure-registered": Program(
        closure(1.0, lowered=True, is_registered=True),
        {"registered": closure(1.0, lowered=False, is_registered=True), "not": closure(1.0, lowered=False, is_registered=False)},
    ),
    "function": Program(
        closure(1.0, lowered=False, is_registered=False), {"another": another_function, "accepted": another_function},
        {"accepted": ["scheduler.scheduler.lr_lambdas"]},
    ),
    "object": Program(called(1.0, lowered=True), {"same": called(1.0)}),
    "script": Program(of_a_script(lowered=True), {}),
    "script-unmoved": Program(
        of_a_script(),
        {
            "same": of_a_script(), "elsewhere": of_a_script(output_dir="runs/b"), "warmup": of_a_script(warmup=8),
            "cap": of_a_script(cap=0.5),
        },
    ),
    "script-registered": Program(
        of_a_script(lowered=True, is_registered=True), {"registered": of_a_script(is_registered=True)},
    ),
    "cyclic": Program(cyclic(), {"same": cyclic(), "gamma": cyclic(1.0)}),
    "scaled": Program(scaled(0.5), {"same": scaled(0.5), "another": scaled(0.25), "none": cyclic(mode="triangular")}),
    "unpicklable": Program(over_an_unpicklable_optimizer, {"same": over_an_unpicklable_optimizer}),
}  # fmt: skip

if __name__ == "__main__":
    main(PROGRAMS, *sys.argv[1:])
