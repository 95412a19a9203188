"""B30: a rank of a run over gloo, started by torchrun: `-m tests.cases.ranks RUN CUT OUT`.

Two ranks, 2 and 9 tokens a microbatch, then 5 and 1: each sums its own tokens, and at the end of a window the ranks
add up their sums and their counts. It stops after CUT microbatches, or never, and goes on from whatever RUN holds.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import segue

TOKENS = ((2, 9), (5, 1), (0, 4), (3, 3))
WINDOW = 2
ROUNDS = 8


def sample(microbatch, rank):
    """The tokens of one rank in one microbatch."""
    generator = torch.Generator().manual_seed(100 * microbatch + rank)
    count = TOKENS[microbatch % len(TOKENS)][rank]
    return torch.randn(count, 5, generator=generator), torch.randint(0, 6, (count,), generator=generator)


def loss_sum(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="sum")


def build():
    torch.manual_seed(0)
    model = nn.Linear(5, 6)
    return (
        model,
        torch.optim.AdamW(model.parameters(), lr=0.05),
        segue.WeightedAccumulator(model, microbatches=WINDOW),
    )


def finish(model, window):
    """Divide the sums of all ranks by the tokens of all ranks."""
    total = torch.tensor(window.finish_sums().total_weight, dtype=torch.float64)
    dist.all_reduce(total)
    for parameter in model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        parameter.grad = gradient / total.float()


def main(run, cut, out):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer, window = build()
    training = segue.Training(model, optimizer, accumulator=window)
    gradients = []
    with segue.Checkpointer(training, f"{run}/rank-{rank}") as checkpointer:
        state = checkpointer.resume(default={"microbatch": 0})
        while state["microbatch"] < min(int(cut), ROUNDS):
            x, y = sample(state["microbatch"], rank)
            loss_sum(model, x, y).backward()
            window.add_sum(len(x))
            if window.is_full:
                finish(model, window)
                gradients.append([p.grad.tolist() for p in model.parameters()])
                optimizer.step()
                optimizer.zero_grad()
            state["microbatch"] += 1
            checkpointer.save(state)
    bits = [p.detach().view(torch.int32).flatten().tolist() for p in model.parameters()]
    Path(f"{out}-{rank}.json").write_text(
        json.dumps({"bits": bits, "gradients": gradients, "pending": window.total_weight})
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
