"""A frozen base with low-rank layers of the test's own, in milliseconds."""

import torch
from torch import nn

import segue

WIDTH = 8


class LowRank(nn.Module):
    """`base(x) + scale * B(A(dropout(x)))`, as an own LoRA layer is written."""

    def __init__(self, base, rank=2, scale=2.0, dropout=0.1):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = scale
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.base(x) + self.scale * (self.dropout(x) @ self.A.T @ self.B.T)


class Adapted(nn.Module):
    def __init__(self, **options):
        super().__init__()
        first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("shift", torch.randn(WIDTH))
        self.first = LowRank(first, **options)
        self.norm = nn.BatchNorm1d(WIDTH).requires_grad_(False)
        self.second = LowRank(second, **options)

    def forward(self, x):
        return self.second(torch.tanh(self.norm(self.first(x)))) + self.shift


BASE = (
    "first.base.bias",
    "first.base.weight",
    "norm.bias",
    "norm.weight",
    "second.base.bias",
    "second.base.weight",
    "shift",
)
STATISTICS = ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
ADAPTERS = ("first.A", "first.B", "second.A", "second.B")


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def make(base_seed=0, seed=1, base=None, components=None, **options):
    """Build a model, its optimizer and a training that keeps the adapter alone."""
    torch.manual_seed(base_seed)
    model = Adapted(**options)
    torch.manual_seed(seed)
    for parameter in trained(model):
        nn.init.normal_(parameter)
    optimizer = torch.optim.AdamW(trained(model), lr=0.01)
    named = segue.base_identity(model) if base is None else base
    state = named if not isinstance(named, str | segue.BaseIdentity) else segue.TrainableOnly(base=named)
    return model, optimizer, segue.Training(model, optimizer, model_state=state, components=components)


def step(model, optimizer, number):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number))
    model(x).pow(2).sum().backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()


def bits(model):
    return {
        name: tensor.detach().clone().view(-1).view(torch.uint8).tolist()
        for name, tensor in model.state_dict().items()
    }


def frozen_memory(model):
    """Where each frozen tensor is, how often it was written to, and which object it is."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: (id(tensors[name]), tensors[name].data_ptr(), tensors[name]._version) for name in BASE}
