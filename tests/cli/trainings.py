"""A tiny training with a checkpoint in mid-window, and its stored forms."""

import torch
from torch import nn

import segue


def tiny_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    window = segue.WeightedAccumulator(model, microbatches=2)
    return (
        model,
        optimizer,
        scheduler,
        window,
        segue.Training(model, optimizer, scheduler, accumulator=window),
    )


def make_run(path, num_microbatches=3):
    """Train a little and save at each microbatch; the last checkpoint is inside a window if that number is odd."""
    model, optimizer, scheduler, window, training = tiny_training()
    with segue.Checkpointer(training, path, keep_last=3) as checkpointer:
        checkpointer.resume()
        step = 0
        for _ in range(num_microbatches):
            model(torch.randn(6, 3)).square().sum().backward()
            window.add_sum(weight=6)
            if window.is_full:
                window.finish_mean()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                step += 1
            checkpointer.save_if_due({"step": step, "note": "[bold]not markup[/]"}, step=step)
    return path
