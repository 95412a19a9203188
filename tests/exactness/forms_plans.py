"""What one process does with forms of a net: train each to its end and save at every boundary, or go on in another form."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import segue
from segue._record.digest import digests
from segue.errors import EnvironmentWarning
from tests.exactness.forms import ADAPTED, WIDTH, in_form, one_process

TOTAL = 5
WINDOW = 2


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    root: str
    forms: tuple[str, ...]
    """Train these from the beginning, and save at every boundary."""
    pairs: tuple[tuple[str, str, int], ...] = ()
    """Or go on: from a checkpoint of the first form in the second, from a boundary."""
    adapted: bool = False
    """Whether these are forms of the net with adapters."""
    dropout: float = 0.0
    """Dynamo draws a checkpointed dropout otherwise than the module does (torch 2.13), so forms agree without it."""
    seed: int = 7

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Run:
    """The live objects, and the loop. An average of the first layer stands for what is registered beside the model."""

    def __init__(self, form: str, plan: Plan) -> None:
        self.model: nn.Module = ADAPTED[form]() if plan.adapted else in_form(form)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout) and not plan.adapted:
                module.p = plan.dropout
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.average = AveragedModel(nn.Linear(1, len(trained)))
        self.averaged = nn.Linear(1, len(trained))
        state = (
            segue.TrainableOnly(base=segue.base_identity(self.model)) if plan.adapted else segue.FullModel()
        )
        self.training = segue.Training(
            self.model, self.optimizer, self.scheduler, model_state=state,
            components={"average": self.average, "averaged": self.averaged},
        )  # fmt: skip

    def microbatch(self, number: int) -> float:
        loss = self.model(torch.randn(3 + number % 2, WIDTH)).pow(2).mean()
        loss.backward()
        if (number + 1) % WINDOW == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            with torch.no_grad():
                for at, parameter in enumerate(self.optimizer.param_groups[0]["params"]):
                    self.averaged.bias[at] = parameter.sum()
            self.average.update_parameters(self.averaged)
        if number == 2:
            self.model.eval()
        if number == 3:
            self.model.train()
        return loss.item()


def carry_out(plan: Plan) -> None:
    """Carry out a plan; writes what was seen at each boundary into the folder."""
    warnings.simplefilter(
        "ignore", EnvironmentWarning
    )  # the state is exact; these backends compute the same bits
    with one_process():
        for form in plan.forms:
            torch.manual_seed(plan.seed)
            seen = train(
                Run(form, plan),
                0,
                lambda boundary, record, form=form: save(plan, form, boundary, record),
            )
            Path(plan.root, f"{form}.json").write_text(json.dumps(seen))
        for before, after, cut in plan.pairs:
            torch._dynamo.reset()
            torch.manual_seed(plan.seed + cut)
            run = Run(after, plan)
            run.training.restore(segue.load(checkpoint(plan.root, before, cut)))
            seen = train(run, cut)
            Path(plan.root, f"{before}--{after}--{cut}.json").write_text(json.dumps(seen))


def train(
    run: Run, begin: int, at_boundary: Callable[[int, segue.TrainingRecord], None] = lambda *_: None
) -> dict[int, Any]:
    """Train from a boundary, and return what is seen at each one."""
    seen = {}
    loss = 0.0
    for number in range(begin, TOTAL + 1):
        record = run.training.capture()
        at_boundary(number, record)
        seen[number] = {"loss": loss.hex(), **digests(record)}
        if number < TOTAL:
            loss = run.microbatch(number)
    return seen


def save(plan: Plan, form: str, boundary: int, record: segue.TrainingRecord) -> None:
    segue.save(record, checkpoint(plan.root, form, boundary))


def checkpoint(root: str | Path, form: str, boundary: int) -> Path:
    return Path(root, f"{form}-at-{boundary}")


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    arguments["pairs"] = tuple(map(tuple, arguments["pairs"]))
    carry_out(Plan(**{**arguments, "forms": tuple(arguments["forms"])}))
