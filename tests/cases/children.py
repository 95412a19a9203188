"""Programs of the cases that need a process of their own: `python -m tests.cases.children NAME ARGUMENT...`."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(name, *arguments, hash_seed="0", check=True):
    """Run one of the programs below to its end and return what it printed, parsed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.cases.children", name, *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else done


def groups_from_a_set(place, mode, *accept):
    """B02: an optimizer over parameters in the order of a set of strings."""
    import torch
    from torch import nn

    import segue
    from segue.errors import OptimizerMismatch

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3, bias=False) for _ in range(5)])
    named = dict(model.named_parameters())
    optimizer = torch.optim.Adam([named[name] for name in set(named)], lr=1e-2)
    training = segue.Training(model, optimizer)

    def moments():
        return {
            name: optimizer.state[p]["exp_avg"].view(torch.int32).flatten().tolist()
            for name, p in named.items()
        }

    if mode == "save":
        model(torch.randn(4, 3)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        segue.save(training.capture(moments()), place)
        print(json.dumps({"order": list(set(named))}))
        return
    record = segue.load(place)
    try:
        state = training.restore(record, accept=accept)
    except OptimizerMismatch as error:
        print(json.dumps({"refused": error.code, "where": error.where, "stateless": not optimizer.state}))
        return
    print(json.dumps({"equal": state == moments(), "order": list(set(named))}))


def noisy(place, mode):
    """B39: dropout, Python and NumPy draws, with Gaussians pending; prints the losses after the stop."""
    import numpy as np
    import torch
    from torch import nn

    import segue

    seed = 0 if mode == "save" else 99
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    training = segue.Training(model, optimizer)

    def step():
        x = torch.randn(4, 8) * random.random() + np.random.normal() + random.gauss(0, 1)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item().hex()

    if mode == "save":
        for _ in range(3):
            step()
        segue.save(training.capture(), place)
    else:
        training.restore(segue.load(place))
    print(json.dumps([step() for _ in range(3)]))


def private_generators(place, mode):
    """B43: bf16 with stochastic rounding, a sampler and augmentations that draw from generators of their own.

    With `forget` the private streams are left out of the record: what a library does that saves the global ones alone.
    """
    from dataclasses import replace

    import numpy as np
    import torch
    from torch import nn

    import segue

    seed = 1 if mode == "save" else 99

    class Rounding(torch.optim.SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.gen = torch.Generator().manual_seed(seed)

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    wide = parameter.float() - group["lr"] * parameter.grad.float()
                    noise = torch.randint(0, 1 << 16, wide.shape, dtype=torch.int32, generator=self.gen)
                    bits = (wide.view(torch.int32) + noise) & -(1 << 16)
                    parameter.copy_(bits.view(torch.float32).bfloat16())

    class Augmentation:
        def __init__(self):
            self.flips, self.shifts = random.Random(seed), {"x": np.random.default_rng(seed)}
            self.order = torch.utils.data.RandomSampler(
                range(5), generator=torch.Generator().manual_seed(seed)
            )

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

        def __call__(self):
            x = torch.tensor([float(index) for index in self.order] + [1.0, 2.0, 3.0])
            return x * self.flips.choice([-1, 1]) + float(self.shifts["x"].normal())

    torch.manual_seed(0)
    model = nn.Linear(8, 8, dtype=torch.bfloat16)
    optimizer, augmentation = Rounding(model.parameters()), Augmentation()
    training = segue.Training(model, optimizer, components={"augmentation": augmentation})

    def step():
        loss = model(augmentation().bfloat16()).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item().hex()

    if mode == "save":
        for _ in range(5):
            step()
        segue.save(training.capture(), place)
    else:
        record = segue.load(place)
        codes = [f"streams.private.{path}" for path in record.private_streams]
        if mode == "forget":
            record = replace(record, private_streams=None)
        training.restore(record, accept=codes if mode == "forget" else ())
    torch.manual_seed(7)  # start-up code that seeds again after loading
    losses = [step() for _ in range(4)]
    print(json.dumps([losses, model.weight.view(torch.int16).flatten().tolist()]))


def windowed(run_folder, total, stop):
    """B27: four microbatches to a window; dies by SIGKILL before its microbatch `stop`, after a save at every one."""
    import torch
    from torch import nn

    import segue

    torch.manual_seed(int(stop) + 1)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with segue.Checkpointer(
        segue.Training(model, optimizer, rng=None), run_folder, keep_last=2
    ) as checkpointer:
        state = checkpointer.resume(default={"microbatch": 0, "shared": 0.0})
        for microbatch in range(state["microbatch"], int(total)):
            if microbatch == int(stop):
                os.kill(os.getpid(), signal.SIGKILL)
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(microbatch))
            loss = model(x).pow(2).mean().div(4)
            loss.backward()
            state["shared"] += loss.item()
            if (microbatch + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            state["microbatch"] += 1
            checkpointer.save_if_due(state)
    bits = [p.detach().view(torch.int32).flatten().tolist() for p in model.parameters()]
    print(json.dumps([bits, state["shared"].hex()]))


def writes_until_killed(run_folder, megabytes):
    """B76: saves again and again, and says so before and after each."""
    import torch
    from torch import nn

    import segue

    model = nn.Linear(int(megabytes) * 256, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with segue.Checkpointer(
        segue.Training(model, optimizer, rng=None), run_folder, keep_last=2
    ) as checkpointer:
        state = checkpointer.resume(default={"count": 0})
        while True:
            with torch.no_grad():
                model.weight.fill_(state["count"] + 1)
            state["count"] += 1
            checkpointer.save(state)
            print(state["count"], flush=True)


def saves_under_a_limit(run_folder):
    """B78: files may have 1 MB, and the checkpoint needs 4."""
    import resource

    import torch
    from torch import nn

    import segue
    from segue.errors import StoreFull

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    model = nn.Linear(1000, 1000, bias=False)
    training = segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1), rng=None)
    with segue.Checkpointer(training, run_folder) as checkpointer:
        checkpointer.resume()
        try:
            checkpointer.save({"count": 2})
        except StoreFull as error:
            print(
                json.dumps({"error": error.code, "cause": type(error.__cause__).__name__, "text": str(error)})
            )


def unfreezes(run_folder, stop, mode="builds"):
    """B03: unfreezes its first layer after the second of its steps, saves after each, and ends after `stop` steps.

    Its first lines know nothing of the unfreezing; what the newest checkpoint has more, it builds (or `forgets`).
    """
    import torch
    from torch import nn

    import segue
    from segue.errors import MismatchError
    from tests.cases.state import live, raw

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def add(parameters, options):
        for parameter in parameters:
            parameter.requires_grad_(True)
        optimizer.add_param_group({**options, "params": parameters})

    training = segue.Training(model, optimizer, scheduler)
    with segue.Checkpointer(training, run_folder) as checkpointer:
        newest, before = checkpointer.newest(), live(model, optimizer)
        if newest is not None and mode == "builds":
            for group in newest.optimizers["optimizer"].groups[1:]:
                named = dict(model.named_parameters())
                add([named[name] for name in group.parameters], group.options)
        try:
            state = checkpointer.resume(default={"step": 0})
        except MismatchError as error:
            codes = [finding.code for finding in error.findings]
            print(json.dumps({"codes": codes, "unchanged": live(model, optimizer) == before}))
            return
        while state["step"] < int(stop):
            if state["step"] == 2:
                add(list(model[0].parameters()), {"lr": 1e-3})
            optimizer.zero_grad()
            model(torch.randn(2, 3)).pow(2).sum().backward()
            optimizer.step()
            scheduler.step()
            state["step"] += 1
            checkpointer.save(state)
    groups = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    print(json.dumps({"groups": groups, "live": repr(raw(live(model, optimizer)))}))


PROGRAMS = {
    function.__name__: function
    for function in (
        unfreezes,
        groups_from_a_set,
        noisy,
        private_generators,
        windowed,
        writes_until_killed,
        saves_under_a_limit,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
