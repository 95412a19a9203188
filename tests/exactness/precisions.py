"""What one process does of a run that is stored in another precision than it trains in."""

import json
from pathlib import Path

import torch
from torch import nn

import segue
from segue._record.digest import digests
from segue.errors import InvalidRecord
from tests.exactness.trainings import seed as all_streams

TOTAL, WINDOW = 9, 3


def build(dtype, seed):
    all_streams(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)  # fp16 has no 1e-8
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def train(dtype_name, precision, run, out, stop=None, seed=0):
    """Train from the newest checkpoint on, saving at each microbatch; write the digests of the end to `out`."""
    dtype = getattr(torch, dtype_name)
    model, optimizer, scheduler = build(dtype, seed)
    training = segue.Training(model, optimizer, scheduler)
    with segue.Checkpointer(training, run, precision=precision) as checkpointer:
        state = checkpointer.resume({"microbatch": 0})
        while state["microbatch"] < TOTAL:
            model(torch.randn(4, 6).to(dtype)).float().pow(2).mean().backward()
            state["microbatch"] += 1
            if state["microbatch"] % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            checkpointer.save_if_due(state)
            if state["microbatch"] == stop:
                return
    Path(out).write_text(json.dumps(digests(training.capture(state))))


def restore_where_denormals_are_flushed(path, out):
    """Restore in a process that converts otherwise, and note what was said, and whether every bit stayed."""
    model, optimizer, scheduler = build(torch.float32, 5)
    training = segue.Training(model, optimizer, scheduler, rng=None)
    before = digests(training.capture())
    record = segue.load(path)
    torch.set_flush_denormal(True)
    code = None
    try:
        training.restore(record)
    except InvalidRecord as error:
        code = error.code
    torch.set_flush_denormal(False)
    Path(out).write_text(json.dumps([code, digests(training.capture()) == before]))
