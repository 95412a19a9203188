"""A program as people write it, run in processes of their own: `python -m tests._session.forked_program RUN ...`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(place, until, *options):
    """Run the program to its end in a new process; return its exit code and what it said."""
    command = [sys.executable, "-W", "error", "-m", "tests._session.forked_program", str(place), str(until)]
    done = subprocess.run(
        [*command, *map(str, options)], capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.returncode, done.stderr


def main():
    import torch
    from torch import nn

    import segue

    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("until", type=int)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--accept", action="append", default=[])
    given = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    window = segue.WeightedAccumulator(model, microbatches=2)
    training = segue.Training(model, optimizer, accumulator=window)
    with segue.Checkpointer(training, given.run) as checkpointer:
        state = checkpointer.resume(default={"microbatch": 0, "step": 0, "losses": []}, accept=given.accept)
        while state["microbatch"] < given.until:
            loss = model(torch.randn(5, 6)).square().sum()
            loss.backward()
            window.add_sum(weight=5)
            if window.is_full:
                window.finish_mean()
                optimizer.step()
                optimizer.zero_grad()
                state["step"] += 1
            state["microbatch"] += 1
            state["losses"].append(loss.item())
            checkpointer.save_if_due(state, step=state["step"])


if __name__ == "__main__":
    main()
