"""Programs that forgot to register something: what it is, where it is told, and the rest of the program."""

from dataclasses import dataclass

CLASSES = '''
class Layer(nn.Module):
    """A linear layer that counts on something of its own."""
    def __init__(self, **own):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        for name, value in own.items():
            setattr(self, name, value)

class Meter:
    def __init__(self):
        self.total = 0.0
    def add(self, value):
        self.total += value
        return self.total

class SlottedMeter:
    __slots__ = ("total",)
    def __init__(self):
        self.total = 0.0

class Saving(Meter):
    def state_dict(self):
        return {"total": self.total}
    def load_state_dict(self, state):
        self.total = state["total"]

class Average:
    """Saves its weights, and forgets how far its warm-up is."""
    def __init__(self, model):
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0
    def update(self, model):
        self.updates += 1
        decay = min(0.99, self.updates / (self.updates + 3))
        for name, p in model.named_parameters():
            self.weights[name].mul_(decay).add_(p.detach(), alpha=1 - decay)
    def state_dict(self):
        return {"weights": self.weights}
    def load_state_dict(self, state):
        for name, value in state["weights"].items():
            self.weights[name].copy_(value)

class Shadow:
    """An average written by hand."""
    def __init__(self, model, replaces=False):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.backup, self.updates, self.replaces = {}, 0, replaces
    def update(self, model):
        self.updates += 1
        decay = min(0.9, self.updates / (self.updates + 3))
        for name, p in model.named_parameters():
            if self.replaces:
                self.shadow[name] = self.shadow[name] * decay + p.detach() * (1 - decay)
            else:
                self.shadow[name].mul_(decay).add_(p.detach(), alpha=1 - decay)

class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(3))
    def forward(self, hidden):
        return (hidden - self.centers).pow(2).mean()

class Counting(torch.utils.data.Dataset):
    def __init__(self):
        self.fetched = 0
    def __len__(self):
        return 20
    def __getitem__(self, index):
        self.fetched += 1
        return torch.full((3,), index / 20 + self.fetched / 100)
'''

PROGRAM = """
import collections, copy, functools, random
import numpy as np
import torch
import segue
from torch import nn
from torch.utils.data import DataLoader
{classes}

def main(first, last, record=None):
    torch.manual_seed(0)
    model = Layer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
{setup}
{before}
    training = segue.Training(model, {arguments})
    if record is not None:
        training.restore(record)
    outputs = []
    for i in {steps}:
        x = torch.full((2, 3), 1.0 + i % 3)
{step}
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(loss.detach().clone())
        if i + 1 == CUT and record is None:
            RECORDS.append(training.capture({state}))
    return outputs[CUT:] if record is None else outputs, {probe}
"""


@dataclass
class Forgotten:
    """A program that forgot to register something."""

    path: str
    """What it is told as; several, joined by commas."""
    setup: str = ""
    step: str = "loss = model.linear(x).pow(2).mean(); loss.backward()"
    probe: str = "None"
    """What else tells whether it goes on as it was."""
    steps: str = "range(first, last)"
    state: str = '{"i": i}'
    is_pasted: bool = True
    """Whether there is a line that registers it."""

    def source(self, before="", arguments="optimizer"):
        return PROGRAM.format(
            classes=CLASSES, setup=_indented(self.setup, 4), before=_indented(before, 4), arguments=arguments,
            steps=self.steps, step=_indented(self.step, 8), state=self.state, probe=self.probe,
        )  # fmt: skip


def _indented(text, spaces):
    return "\n".join(" " * spaces + line for line in text.splitlines())


def _scaled(expression):
    return f"loss = model.linear(x).pow(2).mean() * ({expression}); loss.backward()"


MAKE_LOSS = """
def make_loss():
    centers = Centers()
    second = torch.optim.AdamW(centers.parameters(), lr=0.1)
    def loss_of(hidden):
        return centers(hidden)
    return loss_of, second
loss_of, second = make_loss()
"""
BATCH = "loss = model.linear(batch).pow(2).mean(); loss.backward()"
READ = "batch = next(batches)\n" + BATCH
UPDATED = "loss = model.linear(x).pow(2).mean(); loss.backward(); {}.update(model)"
LOADER = "data_set = [torch.full((3,), k / 20) for k in range(20)]\n"

FORGOTTEN = {
    "a counter of a layer": Forgotten(
        "model.updates", "model.updates = 0", "model.updates += 1\n" + _scaled("model.updates"), "model.updates"
    ),
    "an annealed number": Forgotten("model.keep", "model.keep = 1.0", "model.keep *= 0.9\n" + _scaled("model.keep")),
    "a text that tells the phase": Forgotten(
        "model.phase", 'model.phase = "warm"',
        'loss = model.linear(x).mean() * (1 if model.phase == "warm" else 3); loss.backward()\nmodel.phase = "hot" if i == 1 else model.phase',
    ),
    "a list that grows": Forgotten(
        "model.history", "model.history = []", "model.history.append(i)\n" + _scaled("len(model.history)"), "model.history"
    ),
    "a bounded queue": Forgotten(
        "model.recent", "model.recent = collections.deque(maxlen=3)", "model.recent.append(float(i))\n" + _scaled("1 + sum(model.recent)")
    ),
    "a dictionary of numbers": Forgotten(
        "model.seen", 'model.seen = {"a": 0}', 'model.seen["a"] += 1\n' + _scaled('model.seen["a"]')
    ),
    "a set": Forgotten("model.kinds", "model.kinds = set()", "model.kinds.add(i)\n" + _scaled("len(model.kinds)")),
    "a tensor that is no buffer": Forgotten(
        "model.mean", "model.mean = torch.zeros(3)", "model.mean = model.mean * 0.9 + x[0]\n" + _scaled("model.mean.sum()")
    ),
    "a tensor that is written in place": Forgotten(
        "model.mean", "model.mean = torch.zeros(3)", "model.mean.data.mul_(0.9).add_(x[0])\n" + _scaled("model.mean.sum()")
    ),
    "a large tensor": Forgotten(
        "model.memory", "model.memory = torch.zeros(300, 300)", "model.memory += 0.1\n" + _scaled("model.memory[7, 9]")
    ),
    "an array": Forgotten(
        "model.counts", "model.counts = np.zeros(3)", "model.counts += 1\n" + _scaled("float(model.counts[0])")
    ),
    "a number from data": Forgotten(
        "model.scale", "model.scale = None", "model.scale = model.scale or 1.0 + i\n" + _scaled("model.scale + i * model.scale")
    ),
    "a helper of a layer": Forgotten(
        "model.meter.total", "model.meter = Meter()", _scaled("1 + model.meter.add(1.0)"), "model.meter.total"
    ),
    "a helper in a list": Forgotten("model.meters[0].total", "model.meters = [Meter()]", _scaled("1 + model.meters[0].add(1.0)")),
    "a helper with slots": Forgotten(
        "model.meter.total", "model.meter = SlottedMeter()", "model.meter.total += 1\n" + _scaled("model.meter.total")
    ),
    "a layer below a list of layers": Forgotten(
        "model.blocks.1.calls", "model.blocks = nn.ModuleList([Layer(), Layer(calls=0)])\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.1)",
        "model.blocks[1].calls += 1\n" + _scaled("model.blocks[1].calls"),
    ),
    "what a hook closes over": Forgotten(
        "model.linear._forward_hooks[0].calls",
        'calls = {"n": 0}\ndef hook(module, inputs, output):\n    calls["n"] += 1\n    return output * calls["n"]\nmodel.linear.register_forward_hook(hook)',
        probe="calls",
    ),
    "a number that a hook closes over": Forgotten(
        "model.linear._forward_hooks[0].calls",
        "calls = 0\ndef hook(module, inputs, output):\n    nonlocal calls\n    calls += 1\n    return output * calls\nmodel.linear.register_forward_hook(hook)",
        is_pasted=False,
    ),
    "the object of a hook": Forgotten(
        "model.linear._forward_hooks[0].__self__.total",
        "class Scaling(Meter):\n    def hook(self, module, inputs, output):\n        return output * (1 + self.add(1.0))\nscaling = Scaling()\nmodel.linear.register_forward_hook(scaling.hook)",
    ),
    "what a partial holds": Forgotten(
        "model.linear._forward_pre_hooks[0].args",
        'def hook(seen, module, inputs):\n    seen["n"] += 1\n    return (inputs[0] * seen["n"],)\nseen = {"n": 0}\nmodel.linear.register_forward_pre_hook(functools.partial(hook, seen))',
        is_pasted=False,
    ),
    "a hook of a parameter": Forgotten(
        "model.linear.weight._backward_hooks[0].seen",
        'seen = {"n": 0}\ndef hook(gradient):\n    seen["n"] += 1\n    return gradient * seen["n"]\nmodel.linear.weight.register_hook(hook)',
        probe="model.linear.weight",
    ),
    "a hook of an optimizer": Forgotten(
        "optimizer.optimizer._optimizer_step_pre_hooks[0].seen",
        'seen = {"n": 0}\ndef hook(optimizer, args, kwargs):\n    seen["n"] += 1\n    model.linear.weight.grad *= seen["n"]\noptimizer.register_step_pre_hook(hook)',
        probe="seen",
    ),
    "an attribute of a function": Forgotten(
        "model.linear._forward_hooks[0].calls",
        "def hook(module, inputs, output):\n    hook.calls += 1\n    return output * hook.calls\nhook.calls = 0\nmodel.linear.register_forward_hook(hook)",
    ),
    "a loss with centres and its optimizer": Forgotten(
        "criterion, second",
        "criterion = Centers()\nsecond = torch.optim.AdamW(criterion.parameters(), lr=0.1)",
        "loss = criterion(model.linear(x)); loss.backward(); second.step(); second.zero_grad()",
        "criterion.centers",
    ),
    "a loss that a function closes over": Forgotten(
        "loss_of.centers, second", MAKE_LOSS, "loss = loss_of(model.linear(x)); loss.backward(); second.step(); second.zero_grad()"
    ),
    "an average of weights": Forgotten(
        "average", "average = torch.optim.swa_utils.AveragedModel(model)", "loss = model.linear(x).pow(2).mean(); loss.backward(); average.update_parameters(model)",
        "[*average.parameters(), average.n_averaged]",
    ),
    "a teacher that follows by `.data`": Forgotten(
        "teacher", "teacher = copy.deepcopy(model).requires_grad_(False)",
        "loss = (model.linear(x) - teacher.linear(x)).pow(2).mean() + model.linear(x).mean(); loss.backward()\nfor ours, its in zip(model.parameters(), teacher.parameters()):\n    its.data.mul_(0.9).add_(ours.data, alpha=0.1)",
        "list(teacher.parameters())",
    ),
    "statistics of a frozen network": Forgotten(
        "frozen", "frozen = nn.BatchNorm1d(3, affine=False)", "loss = frozen(model.linear(x) + torch.arange(2.0)[:, None]).pow(3).mean(); loss.backward()",
        "frozen.running_mean",
    ),
    "an average in an attribute of the trainer": Forgotten(
        "self.average",
        "class Trainer:\n    pass\nself = Trainer()\nself.average = torch.optim.swa_utils.AveragedModel(model)",
        "loss = model.linear(x).pow(2).mean(); loss.backward(); self.average.update_parameters(model)",
        "list(self.average.parameters())",
    ),
    "a gradient scaler": Forgotten(
        "scaler", 'scaler = torch.amp.GradScaler("cpu", growth_interval=2)',
        "loss = model.linear(x).pow(2).mean()\nscaler.scale(loss).backward()\nscaler.unscale_(optimizer)\nscaler.update()\nmodel.linear.bias.grad *= scaler.get_scale()",
        "scaler.get_scale()",
    ),
    "a generator of torch": Forgotten(
        "noise", "noise = torch.Generator().manual_seed(3)", _scaled("torch.rand((), generator=noise)")
    ),
    "a generator of Python": Forgotten("noise", "noise = random.Random(3)", _scaled("noise.random()")),
    "a generator of NumPy": Forgotten("noise", "noise = np.random.default_rng(3)", _scaled("float(noise.random())")),
    "an object that can save itself": Forgotten(
        "meter", "meter = Saving()", _scaled("1 + meter.add(1.0)"), "meter.total"
    ),
    "what a component does not save": Forgotten(
        "component.average.updates", "average = Average(model)", "loss = model.linear(x).pow(2).mean(); loss.backward(); average.update(model)",
        "average.weights",
    ),
    "a network in a plain list": Forgotten(
        "model.hidden, second", "model.hidden = [Centers()]\nsecond = torch.optim.AdamW(model.hidden[0].parameters(), lr=0.1)",
        "loss = model.hidden[0](model.linear(x)); loss.backward(); second.step(); second.zero_grad()", is_pasted=False,
    ),
    "an average written by hand": Forgotten("ema", "ema = Shadow(model)", UPDATED.format("ema"), "(ema.shadow, ema.updates)"),
    "an average written by hand, of new tensors": Forgotten(
        "ema", "ema = Shadow(model, True)", UPDATED.format("ema"), "(ema.shadow, ema.updates)"
    ),
    "an average written by hand in a trainer": Forgotten(
        "self.ema", "class Trainer:\n    pass\nself = Trainer()\nself.ema = Shadow(model)", UPDATED.format("self.ema"), "self.ema.shadow",
    ),
    "an average in a plain dictionary": Forgotten(
        "ema", "ema = Shadow(model).shadow",
        "loss = model.linear(x).pow(2).mean(); loss.backward()\nfor name, p in model.named_parameters():\n    ema[name] = ema[name] * 0.9 + p.detach() * 0.1",
        "ema",
    ),
    "an average in a plain list": Forgotten(
        "ema", "ema = [p.detach().clone() for p in model.parameters()]",
        "loss = model.linear(x).pow(2).mean(); loss.backward()\nfor its, p in zip(ema, model.parameters()):\n    its.lerp_(p.detach(), 0.1)",
        "ema", is_pasted=False,
    ),
    "a plain loader, and no count": Forgotten(
        "loader", LOADER + "loader = DataLoader(data_set, batch_size=2)",
        BATCH, steps="loader", state="None",
    ),
    "a shuffling loader": Forgotten(
        "loader", LOADER + "loader = DataLoader(data_set, batch_size=2, shuffle=True)", BATCH, steps="loader", is_pasted=False,
    ),
    "an iterator of a shuffling loader": Forgotten(
        "loader", LOADER + "loader = DataLoader(data_set, batch_size=2, shuffle=True)\nbatches = iter(loader)", READ, is_pasted=False,
    ),
    "a function that yields batches": Forgotten(
        "batches", LOADER + "def read():\n    while True:\n        yield from data_set\nbatches = read()", READ, state="None", is_pasted=False,
    ),
    "a list that is read": Forgotten(
        "batches", LOADER + "batches = iter(data_set)", READ, state="None", is_pasted=False
    ),
    "a loader that knows its position": Forgotten(
        "loader", LOADER + "from torchdata.stateful_dataloader import StatefulDataLoader\nloader = StatefulDataLoader(data_set, batch_size=2, shuffle=True)",
        BATCH, steps="loader",
    ),
    "a position that was not handed in": Forgotten(
        "position", LOADER + "position = segue.DataPosition(DataLoader(data_set, batch_size=2))", BATCH, steps="position",
    ),
    "a dataset that counts": Forgotten(
        "component.data.loader.dataset.fetched", "counting = Counting()\ndata = segue.DataPosition(DataLoader(counting, batch_size=2))", BATCH, steps="data",
    ),
}  # fmt: skip
REGISTERED = {
    "what a component does not save": '"average": average',
    "a dataset that counts": '"data": data',
}
"""What the program has registered already."""
