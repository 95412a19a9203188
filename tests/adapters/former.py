"""A training as it was saved when names had peft's wrappers in them: `tests/format/golden/peft-names`, never made again."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

import segue
from tests.adapters.libraries import peft

GOLDEN = Path(__file__).resolve().parents[1] / "format" / "golden" / "peft-names"


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.norm(self.first(x)))


def config():
    return peft.LoraConfig(
        target_modules=["first"], r=2, lora_alpha=3, lora_dropout=0.1, modules_to_save=["head"]
    )


def built(wrapped=True, wrap=lambda model: model):
    """Build model and average, in peft's wrappers or with adapters in the layers alone, and bind them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make = (
            peft.get_peft_model
            if wrapped
            else lambda model, config: peft.inject_adapter_in_model(config, model)
        )
        model, average = (make(Base(), config()) for _ in range(2))
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    training = segue.Training(
        wrap(model), optimizer, model_state=segue.TrainableOnly(base=segue.base_identity(model)),
        components={"average": average}, rng=None,
    )  # fmt: skip
    return model, average, optimizer, training


def trained():
    torch.manual_seed(1)
    model, average, optimizer, training = built()
    for number in range(3):
        model(torch.randn(4, 3)).pow(2).sum().backward()
        if number < 2:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for parameter, other in zip(average.parameters(), model.parameters(), strict=True):
            parameter.copy_(other).mul_(0.5)
    return model, average, optimizer, training
