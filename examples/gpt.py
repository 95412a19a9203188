"""Train a small GPT on text: bf16 autocast, a gradient scaler, windows of unequal tokens, dropout, tied weights, torch.compile.

    python examples/gpt.py --run runs/gpt

Kill it whenever you like, and give the same command again: it goes on, and ends with the same digest. The text is the
language reference that ships inside Python. Without a C++ compiler, it says so and runs uncompiled.
"""

from __future__ import annotations

import argparse
import math
import random

import numpy as np
import torch
from digest import digest
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import segue

CONTEXT = 64
PADDING = -100  # what `cross_entropy` ignores


class Paragraphs(Dataset):
    """Paragraphs as bytes, padded to one length: a compiled model then is compiled once, in each process alike."""

    def __init__(self, num_paragraphs: int) -> None:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
        long_enough = [paragraph for paragraph in text.split(b"\n\n") if len(paragraph) > 16]
        self.paragraphs = long_enough[:num_paragraphs]

    def __len__(self) -> int:
        return len(self.paragraphs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.tensor(list(self.paragraphs[index][: CONTEXT + 1]))
        missing = CONTEXT + 1 - len(values)
        return functional.pad(values[:-1], (0, missing)), functional.pad(
            values[1:], (0, missing), value=PADDING
        )


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(self.before_attention(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.mlp(self.before_mlp(hidden))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int = 64, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(hidden)))


def compiles() -> bool:
    """Tell whether `torch.compile` works here: it needs a C++ compiler."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(8))
    except Exception as error:
        print(f"runs uncompiled: {str(error).splitlines()[0]}")
        return False
    return True


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="the folder of the run's checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--paragraphs", type=int, default=4000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--window", type=int, default=4, help="microbatches of one optimizer step")
    parser.add_argument(
        "--save-every", type=int, default=20, help="microbatches from one checkpoint to the next"
    )
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    paragraphs = Paragraphs(args.paragraphs)
    # Whole batches alone, so that all have one shape.
    sampler = segue.ExactSampler(paragraphs, batch_size=args.batch, drop_last=True, seed=0)
    data = segue.DataPosition(DataLoader(paragraphs, batch_size=args.batch, sampler=sampler))
    num_steps = args.epochs * len(data) // args.window
    model = GPT(layers=args.layers)
    run = torch.compile(model) if args.compile and compiles() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = LambdaLR(optimizer, lambda step: warmup_then_cosine(step, num_steps // 10, num_steps))
    scaler = torch.amp.GradScaler("cpu", growth_interval=50)
    window = segue.WeightedAccumulator(model, microbatches=args.window)

    training = segue.Training(
        run, optimizer, scheduler, accumulator=window, components={"scaler": scaler, "data": data}
    )
    with segue.Checkpointer(
        training, args.run, every_microbatches=args.save_every, keep_last=3
    ) as checkpointer:
        state = checkpointer.resume(default={"losses": []})
        print(f"from microbatch {len(state['losses'])} on")
        while data.epoch < args.epochs:
            for tokens, targets in data:
                num_tokens = int((targets != PADDING).sum())
                with torch.autocast("cpu", torch.bfloat16):
                    logits = run(tokens)
                loss = functional.cross_entropy(
                    logits.float().flatten(0, 1), targets.flatten(), reduction="sum"
                )
                scaler.scale(loss).backward()
                window.add_sum(weight=num_tokens)
                if window.is_full:
                    window.finish_mean()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    scheduler.step()
                state["losses"].append(loss.item() / num_tokens)
                if checkpointer.save_if_due(state):
                    raise SystemExit("preempted; the same command goes on")
            print(f"epoch {data.epoch}: loss {state['losses'][-1]:.4f}")
        checkpointer.save(state)  # the end itself

    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    end = {name: value.state_dict() for name, value in objects.items()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    streams = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    print("digest", digest([state, end, gradients, streams]))


if __name__ == "__main__":
    main()
