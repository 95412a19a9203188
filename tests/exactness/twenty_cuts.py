"""One training that has everything at once, in three modes: what twenty cuts are tried on.

A transformer of two blocks with attention dropout, BatchNorm1d, a tied embedding and head, a parameter that only some
microbatches use and generators of its own; AdamW with two groups, OneCycleLR, windows of four microbatches with unequal
tokens, clipping, an average of the weights, a shuffling loader with two workers, augmentation in workers and in the loop
from all streams, and an evaluation between passes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer of a process imports it
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from tests.exactness.live import VALUES

torch.set_num_threads(1)

VOCABULARY = 32
WIDTH = 16
PADDING = -100
WINDOW = 4
BATCH = 4
# Nine batches a pass, the last one smaller: passes end at all places of a window.
SEQUENCES = 8 * BATCH + 2
PASSES = 3
TOTAL = 9 * PASSES
CUTS = range(21)


@dataclass(frozen=True)
class Mode:
    """One precision with one implementation of the optimizer."""

    autocast: torch.dtype | None
    implementation: dict[str, bool] = field(hash=False)
    accumulator: bool
    """Sums of a window in a `WeightedAccumulator`; otherwise in `.grad`, the tokens in the caller state."""
    scaler: bool = False


MODES = {
    "bf16 autocast, foreach": Mode(torch.bfloat16, {"foreach": True}, accumulator=True),
    "fp16 autocast, scaler, fused": Mode(torch.float16, {"fused": True}, accumulator=False, scaler=True),
    "fp32, for-loop": Mode(None, {"foreach": False}, accumulator=False),
}


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Sequences(Dataset):
    """Sequences of unequal length, each altered by all three streams of its worker; they tell their numbers too."""

    def __len__(self) -> int:
        return SEQUENCES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        length = 4 + index % 5
        tokens = (torch.arange(length) * (index + 1) + index) % VOCABULARY
        tokens[random.randrange(length)] = int(np.random.randint(VOCABULARY))
        return index, torch.where(torch.rand(length) < 0.1, tokens.roll(1), tokens)


def padded(samples: list[tuple[int, torch.Tensor]]) -> tuple[list[int], torch.Tensor]:
    sequences = [tokens for _, tokens in samples]
    padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PADDING)
    return [index for index, _ in samples], padded


class Noise(nn.Module):
    """Noise from generators that nobody hands to segue."""

    def __init__(self) -> None:
        super().__init__()
        number = torch.initial_seed()  # another one in each process
        self.generator = torch.Generator().manual_seed(number)
        self.numpy = np.random.default_rng(number)
        self.python = random.Random(number)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return hidden
        factor = 1 + 0.01 * (self.python.gauss(0, 1) + float(self.numpy.normal()))
        return hidden * factor + 0.01 * torch.randn(hidden.shape, generator=self.generator)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        query, key, value = self.qkv(normed).view(*hidden.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=0.1 if self.training else 0.0, is_causal=True
        )
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(hidden.shape))
        return hidden + self.mlp(hidden)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.noise = Noise()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.occasional = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, *, use_occasional: bool = False) -> torch.Tensor:
        hidden = self.noise(self.embed(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden * self.occasional if use_occasional else hidden)


class Run:
    """The live objects of one process, and the loop.

    Args:
        mode: How to train.
        left_out: What the program forgets to hand in, by the name of the argument or component.
    """

    def __init__(self, mode: Mode, left_out: Collection[str] = ()) -> None:
        self.mode = mode
        self.net = Net()
        decayed = [parameter for parameter in self.net.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in self.net.parameters() if parameter.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = AdamW(groups, lr=0.01, **mode.implementation)
        self.scheduler = OneCycleLR(self.optimizer, max_lr=0.02, total_steps=TOTAL // WINDOW + 1)
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=mode.scaler)
        self.window = segue.WeightedAccumulator(self.net, microbatches=WINDOW) if mode.accumulator else None
        loader = StatefulDataLoader(
            segue.SeededSamples(Sequences(), seed=3), batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=padded
        )  # fmt: skip
        self.data = segue.DataPosition(loader)
        components = {"average": self.average, "data": self.data, "scaler": self.scaler}
        self.training = segue.Training(
            self.net,
            self.optimizer,
            self.scheduler,
            accumulator=self.window,
            components={name: value for name, value in components.items() if name not in left_out},
            **({"rng": None} if "rng" in left_out else {}),
        )

    @staticmethod
    def beginning() -> dict[str, Any]:
        return {"microbatch": 0, "tokens": 0, "losses": [], "evaluations": [], "ids": []}

    def microbatch(self, ids: list[int], tokens: torch.Tensor, state: dict[str, Any]) -> None:
        """Do one microbatch, and the update at the end of a window."""
        number = state["microbatch"]
        shift = random.randrange(4) + int(np.random.randint(4)) + int(torch.randint(4, ()))
        real = tokens != PADDING
        inputs = torch.where(real, (tokens + shift) % VOCABULARY, 0)
        targets = torch.where(real, inputs.roll(-1, 1), PADDING)
        with torch.autocast(
            "cpu", self.mode.autocast or torch.bfloat16, enabled=self.mode.autocast is not None
        ):
            logits = self.net(inputs, use_occasional=number % 3 == 1)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
        self.scaler.scale(loss).backward()
        num_tokens = int(real.sum())
        if self.window is None:
            state["tokens"] += num_tokens
        else:
            self.window.add_sum(num_tokens)
        state["microbatch"] = number + 1
        state["losses"].append(loss.item())
        state["ids"].append(ids)
        if (number + 1) % WINDOW == 0:
            self.update(state)

    def update(self, state: dict[str, Any]) -> None:
        if self.window is not None:
            self.window.finish_mean()
        self.scaler.unscale_(self.optimizer)
        if self.window is None:
            for parameter in self.net.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(state["tokens"])
            state["tokens"] = 0
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.average.update_parameters(self.net)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Evaluate the average; the plain loader draws from torch's global stream, as everybody's does."""
        self.average.eval()
        total = 0.0
        for _, tokens in DataLoader(_Plain(), batch_size=8):
            logits = self.average(tokens)
            total += nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item()
        return total

    def seen(self, state: dict[str, Any]) -> dict[str, str]:
        """Digest all that is live, by section, looked at without segue."""
        noise = self.net.noise
        sections = {
            "model": VALUES.module(self.net),
            "average": VALUES.module(self.average),
            "optimizer": VALUES.optimizer(self.optimizer),
            "scheduler": VALUES.scheduler(self.scheduler),
            "window": VALUES.window(self.window, self.net),
            "scaler": VALUES.plain(self.scaler.state_dict()),
            "streams": VALUES.plain([random.getstate(), np.random.get_state(), torch.get_rng_state()]),
            "own generators": VALUES.plain(
                [noise.python.getstate(), noise.numpy.bit_generator.state, noise.generator.get_state()]
            ),
            "data": (self.data.epoch, self.data.delivered),
            "state": VALUES.plain(state),
        }
        return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in sections.items()}


class _Plain(Dataset):
    """What is evaluated on: never altered."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, (torch.arange(6) * 3 + index) % VOCABULARY
