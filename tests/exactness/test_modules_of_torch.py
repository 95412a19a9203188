"""Modules that keep state in unusual places: cut at every microbatch, through the disk, into objects built anew."""

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.nn.utils import parametrizations, prune

import segue
from tests.exactness.trainings import seed

TOTAL = 7


class Applied(nn.Module):
    """A module with a small layer before it, and a way to call it."""

    def __init__(self, inner, call=lambda inner, x: inner(x)):
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.inner = inner
        self.call = call

    def forward(self, x):
        return self.call(self.inner, self.before(x))


class Remembers(nn.Module):
    """Keeps the last outputs in a buffer that begins as `None`, and is another tensor after each forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", None)

    def forward(self, x):
        last = x.detach() if self.last is None else torch.cat([self.last, x.detach()])
        self.last = last[-5:].clone()
        return x + self.last.mean()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.listed = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(3))
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.randn(4))})

    def forward(self, x):
        return x * sum(self.listed) + self.named["a"]


class Quantized(nn.Module):
    """Quantization-aware training: its observers resize their buffers in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.of_weight = quantization.default_per_channel_weight_fake_quant()
        self.of_output = quantization.default_fake_quant()

    def forward(self, x):
        return self.of_output(nn.functional.linear(x, self.of_weight(self.layer.weight), self.layer.bias))


def pruned():
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", 0.3)
    return layer


KINDS = {
    "lstm": lambda: Applied(nn.LSTM(4, 4, 2, dropout=0.3), lambda inner, x: inner(x.view(2, 3, 4))[0]),
    "attention": lambda: Applied(
        nn.TransformerEncoderLayer(4, 2, 8), lambda inner, x: inner(x.view(3, 2, 4))
    ),
    "spectral norm": lambda: Applied(parametrizations.spectral_norm(nn.Linear(4, 4))),
    "weight norm": lambda: Applied(parametrizations.weight_norm(nn.Linear(4, 4))),
    "orthogonal": lambda: Applied(parametrizations.orthogonal(nn.Linear(4, 4))),
    "old spectral norm": lambda: Applied(nn.utils.spectral_norm(nn.Linear(4, 4))),
    "old weight norm": lambda: Applied(nn.utils.weight_norm(nn.Linear(4, 4))),
    "pruned": lambda: Applied(pruned()),
    "batch norm of all batches": lambda: Applied(nn.BatchNorm1d(4, momentum=None)),
    "random activations": lambda: Applied(nn.Sequential(nn.RReLU(), nn.AlphaDropout(0.2))),
    "remembers": lambda: Applied(Remembers()),
    "complex": lambda: Applied(Complex()),
    "listed": lambda: Applied(Listed()),
    "quantized": lambda: Applied(Quantized()),
    "scripted": lambda: torch.jit.script(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 4))
    ),
    "double": lambda: Applied(nn.GRU(4, 4), lambda inner, x: inner(x.view(2, 3, 4))[0]).double(),
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.ao.quantization is deprecated",
    "ignore:.*torch.nn.utils.weight_norm.* is deprecated",
    "ignore:.*torch.jit",
    "ignore:Please use quant_min and quant_max",
)


class Run:
    def __init__(self, kind):
        self.net = KINDS[kind]()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.training = segue.Training(self.net, self.optimizer, self.scheduler)

    def go_on(self, begin, end):
        dtype = next(self.net.parameters()).dtype
        losses = []
        for number in range(begin, end):
            loss = self.net(torch.randn(6, 4, dtype=dtype)).pow(2).sum()
            loss.backward()
            losses.append(loss.item().hex())
            if number % 2:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
        return losses


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_each_microbatch(kind, tmp_path):
    seed(1)
    reference = Run(kind)
    losses = []
    for boundary in range(TOTAL):
        segue.save(reference.training.capture(), tmp_path / str(boundary))
        losses += reference.go_on(boundary, boundary + 1)
    end = reference.training.capture()
    for boundary in range(TOTAL):
        seed(2)
        resumed = Run(kind)
        resumed.training.restore(segue.load(tmp_path / str(boundary)))
        assert resumed.go_on(boundary, TOTAL) == losses[boundary:]
        assert segue.diff(end, resumed.training.capture()).identical
