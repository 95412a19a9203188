"""A training that draws from ten generators of its own, at as many places; run whole, or from stored records."""

import json
import random
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from segue._record.digest import digests

STEPS = 12
BATCHES = 4  # of a pass: cuts at 4 and 8 are at an epoch's end
EVALUATED = (2, 4, 7)


class Noise(nn.Module):
    """Adds noise of its own, and drops by a NumPy generator."""

    def __init__(self, seed):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.generator = torch.Generator().manual_seed(seed)
        self.choices = {"keep": np.random.Generator(np.random.Philox(seed))}

    def forward(self, x):
        keep = torch.from_numpy(self.choices["keep"].random(6, dtype=np.float32) > 0.2)
        return self.linear(x + 0.1 * torch.randn(x.shape, generator=self.generator)) * keep


class Rounding(torch.optim.SGD):
    """SGD whose learning rate is dithered: a stand-in for stochastic rounding."""

    def __init__(self, parameters, seed):
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self.dither = random.Random(seed)

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(1e-3 * self.dither.gauss(0, 1))


class Data(torch.utils.data.Dataset):
    """Augments in the main process, from NumPy's legacy generator and children of a seed sequence."""

    def __init__(self, seed):
        self.legacy = np.random.RandomState(seed)
        self.seeds = np.random.SeedSequence(seed)

    def __len__(self):
        return 2 * BATCHES

    def __getitem__(self, index):
        child = np.random.default_rng(self.seeds.spawn(1)[0])
        return torch.full((6,), float(index)) + float(self.legacy.normal()) + float(child.random())


class Warmup:
    """A schedule with a little noise of its own."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def __call__(self, step):
        # Not as it is made: with which rates a program is built is told of its optimizer, and compared.
        return 1.0 + (0.01 * float(self.generator.random()) if step else 0.0)


class Run:
    """Everything of one run; the same but for its seeds wherever it is made."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(0)
        self.model = nn.Sequential(Noise(seed), nn.Dropout(0.3), Noise(seed + 1), nn.Linear(6, 1))
        torch.manual_seed(seed)
        hooked = self.hooked = random.Random(seed)
        self.model[2].register_forward_hook(lambda module, inputs, output: output * hooked.random())
        self.optimizer = Rounding(self.model.parameters(), seed)
        self.scheduler = LambdaLR(self.optimizer, Warmup(seed))
        self.shuffling = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13
            loader = StatefulDataLoader(Data(seed), batch_size=2, shuffle=True, generator=self.shuffling)
        self.data = segue.DataPosition(loader)
        self.training = segue.Training(
            self.model, self.optimizer, self.scheduler, components={"data": self.data, "hooked": segue.StateOf(self, "hooked")}
        )  # fmt: skip
        self.losses = []

    def evaluate(self):
        """Draw wherever a careless evaluation does: dropout left on, a loader that shuffles, an iterator for nothing."""
        loader = torch.utils.data.DataLoader(torch.arange(12.0).reshape(2, 6), shuffle=True)
        iter(loader)
        with torch.no_grad():
            return sum(self.model(batch).sum().item() for batch in loader)

    def go_on(self, done, at_boundary=lambda done: None):
        """Run to the end, calling back at every boundary."""
        while done < STEPS:
            for batch in self.data:
                loss = self.model(batch).pow(2).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                done += 1
                self.losses.append(loss.item().hex())
                at_boundary(done)
                if done in EVALUATED:
                    self.losses.append(float(self.evaluate()).hex())
        return {"losses": self.losses, "digests": digests(self.training.capture())}


def main(folder, *cuts):
    """Go on from each record, and print what `go_on` returns."""
    found = {}
    for cut in cuts:
        run = Run(seed=77 + int(cut))
        run.training.restore(segue.load(Path(folder) / cut))
        if int(cut) in EVALUATED:
            run.losses.append(float(run.evaluate()).hex())
        found[cut] = run.go_on(int(cut))
    print(json.dumps(found))
