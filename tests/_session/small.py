"""The smallest training there is."""

import torch
from torch import nn

import segue


def make(seed=0, size=3, **options):
    torch.manual_seed(seed)
    model = nn.Linear(size, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, segue.Training(model, optimizer, **options)


def step(model, optimizer):
    model(torch.ones(2, model.in_features)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
