"""Between records, files and live objects nothing is shared, whoever gives away what is his or keeps what he is given.

`test_snapshots` walks whole trainings; here are the parts that tempt: schedules with lists and objects, components that
hand out their own containers, what a record hands to people, and a record that is written to a file while it is restored.
"""

import itertools
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler
from torch.optim.swa_utils import SWALR

import segue
from segue._record.composite import blobs
from segue._record.digest import digests
from segue._store.local import LocalFilesystem
from segue._store.store import DirectoryStore
from tests.cases.state import live, raw
from tests.exactness.memories import memories


def apart(*roots):
    """Assert that no two of these hold any memory or container in common."""
    for one, other in itertools.combinations([memories(root) for root in roots], 2):
        assert one.shared_with(other) == []


def step(model, optimizer, scheduler=None):
    model(torch.randn(4, model.in_features)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    elif scheduler is not None:
        scheduler.step()


# --- spoiling one side ---


def spoil(value, seen=None):
    """Write garbage into everything that can be written to in place, and enter everything."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(torch.full_like(value, 77))
    elif isinstance(value, np.ndarray):
        value[...] = 77
    elif isinstance(value, dict):
        for item in list(value.values()):
            spoil(item, seen)
        value["spoilt"] = {}
    elif isinstance(value, list):
        for item in list(value):
            spoil(item, seen)
        value.append(77)
    elif isinstance(value, tuple):
        for item in value:
            spoil(item, seen)
    elif type(value).__module__.startswith("tests."):
        spoil(vars(value), seen)


def spoil_record(record):
    """Write garbage into the bytes of a record and into its containers; who holds it now holds nothing of use."""
    for blob in blobs(record.sections()):
        data = getattr(blob.source, "_data", None)
        if data is not None:
            data.fill_(77)
    for section in (record.optimizers, record.schedulers, record.components):
        for item in section.values():
            for tree in vars(item).values():
                spoil(tree)
    spoil(record.caller_state)
    spoil(record.streams)
    spoil(record.lineage)


def test_spoiling_spoils():
    model = nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    step(model, optimizer)
    record = segue.Training(model, optimizer).capture({"seen": [1]})
    before = digests(record)
    spoil_record(record)
    after = digests(record)
    assert {name for name in before if before[name] != after[name]} >= {"model", "optimizers", "caller_state"}


# --- schedules with lists, counters, functions and objects ---


class Ramp:
    """A function with state of its own, in containers."""

    def __init__(self):
        self.seen, self.table = [], {"slope": [0.1]}

    def __call__(self, epoch):
        self.seen.append(epoch)
        return min(1.0, self.table["slope"][0] * len(self.seen))


def sequential(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])]
    return lr_scheduler.SequentialLR(optimizer, parts, [3])


def chained(optimizer):
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.LambdaLR(optimizer, Ramp())]
    return lr_scheduler.ChainedScheduler(parts)


SCHEDULES = {
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20),
    "CyclicLR": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, cycle_momentum=False),
    "MultiStepLR": partial(lr_scheduler.MultiStepLR, milestones=[2, 2, 5]),
    "CosineAnnealingWarmRestarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    "LambdaLR of objects": lambda optimizer: lr_scheduler.LambdaLR(optimizer, [Ramp(), Ramp()]),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9),
    "ReduceLROnPlateau": partial(lr_scheduler.ReduceLROnPlateau, min_lr=[0.001, 0.002], patience=1),
    "SequentialLR": sequential,
    "ChainedScheduler": lambda optimizer: chained(optimizer),
    "SWALR": partial(SWALR, swa_lr=[0.01, 0.02], anneal_epochs=4),
}


def scheduled(name, tensor_rates=False):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    rate = (lambda: torch.tensor(0.1)) if tensor_rates else (lambda: 0.1)
    groups = [
        {"params": [model.weight], "lr": rate()},
        {"params": [model.bias], "lr": rate(), "tag": ["own", {}]},
    ]
    optimizer = AdamW(groups, foreach=False)
    scheduler = SCHEDULES[name](optimizer)
    return model, optimizer, scheduler, segue.Training(model, optimizer, scheduler)


@pytest.mark.parametrize("tensor_rates", [False, True], ids=["plain rates", "rates in tensors"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_share_nothing_with_records_or_each_other(name, tensor_rates, tmp_path):
    a = scheduled(name, tensor_rates)
    for _ in range(3):
        step(*a[:3])
    record, again = a[3].capture(), a[3].capture_async().result()
    segue.save(record, tmp_path / "saved")
    loaded = segue.load(tmp_path / "saved")
    b, c = scheduled(name, tensor_rates), scheduled(name, tensor_rates)
    for source in (loaded, record, again, record):
        b[3].restore(source)
        c[3].restore(source)
        apart(a, b, c, record, again, loaded)
    expected, seen = digests(record), live(a[0], a[1])
    for each in (b, c):
        step(*each[:3])
        apart(a, b, c, record, again, loaded)
    spoil({key: value for key, value in vars(b[2]).items() if key != "optimizer"})
    spoil([{key: value for key, value in group.items() if key != "params"} for group in b[1].param_groups])
    assert digests(record) == digests(again) == digests(loaded) == expected
    assert live(a[0], a[1]) == seen
    moved = live(c[0], c[1])
    spoil_record(again)
    assert digests(record) == digests(loaded) == expected
    assert (live(a[0], a[1]), live(c[0], c[1])) == (seen, moved)
    # What was spoilt last is the same bits again from what was not.
    c[3].restore(record)
    assert digests(c[3].capture()) == expected


# --- who gives away what is his, and who keeps what he is given ---


class Keeper:
    """Hands out its own containers, and keeps those that it is given: nothing is copied by itself."""

    def __init__(self):
        self.tree = {
            "seen": [1, {"deep": [2]}], "tensor": torch.arange(4.0), "array": np.arange(3), "set": {1, 2},
            "bytes": bytearray(b"ab"), "tuple": ([3], torch.ones(2)),
        }  # fmt: skip

    def state_dict(self):
        return self.tree

    def load_state_dict(self, tree):
        self.tree = tree


class OwnComponent(Keeper):
    """The same by the protocol of a component."""

    def capture(self):
        return self.tree

    def check(self, tree):
        return []

    def restore(self, tree):
        self.tree = tree

    state_dict = load_state_dict = None


class KeepingOptimizer:
    """An optimizer of the caller's that does likewise."""

    def __init__(self, parameter):
        self.param_groups = [{"params": [parameter], "lr": 0.1}]
        self.tree = Keeper().tree

    def step(self):
        self.tree["seen"].append(3)

    def state_dict(self):
        return self.tree

    def load_state_dict(self, tree):
        self.tree = tree


def keeping(kind):
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    if kind == "optimizer":
        keeper = KeepingOptimizer(model.weight)
        return keeper, segue.Training(model, {"own": keeper})
    keeper = {"state_dict": Keeper, "component": OwnComponent, "attributes": Keeper}[kind]()
    handed = segue.StateOf(keeper, "tree") if kind == "attributes" else keeper
    return keeper, segue.Training(model, SGD(model.parameters(), lr=0.1), components={"it": handed})


@pytest.mark.parametrize("kind", ["state_dict", "component", "attributes", "optimizer"])
def test_what_is_handed_out_or_kept_by_reference_is_a_copy_on_both_sides(kind, tmp_path):
    a, training = keeping(kind)
    before = raw(a.tree)
    record, again = training.capture(), training.capture()
    segue.save(record, tmp_path / "saved")
    loaded, read = segue.load(tmp_path / "saved"), segue.from_bytes(segue.to_bytes(record))
    apart(a.tree, record, again, loaded, read)
    trees = [a.tree]
    for source in (record, loaded, read, record, loaded, read):
        b, other = keeping(kind)
        other.restore(source)
        assert raw(b.tree) == before
        trees.append(b.tree)
    apart(*trees, record, again, loaded, read)
    expected = digests(record)
    for tree in trees:
        spoil(tree)
    assert digests(record) == digests(again) == digests(loaded) == digests(read) == expected
    training.restore(again)
    assert raw(a.tree) == before
    kept = a.tree
    spoil_record(again)
    assert raw(kept) == before
    assert digests(record) == digests(loaded) == digests(read) == expected


def test_a_refused_component_s_undo_copy_is_nobody_else_s(tmp_path):
    class Refusing(Keeper):
        def load_state_dict(self, tree):
            self.tree = tree
            if tree["seen"][0] == 9:
                tree["seen"].append("spoilt by its loader")
                raise ValueError("no")

    def made(seen):
        model = nn.Linear(1, 1)
        keeper = Refusing()
        keeper.tree["seen"] = seen
        return keeper, segue.Training(model, SGD(model.parameters(), lr=0.1), components={"it": keeper})

    _, training = made([9])
    record = training.capture()
    expected = digests(record)
    keeper, other = made([1])
    before = raw(keeper.tree)
    for _ in range(2):
        with pytest.raises(segue.errors.ComponentMismatch):
            other.restore(record)
        assert raw(keeper.tree) == before
        apart(keeper.tree, record)
        assert digests(record) == expected


# --- what a record hands to people ---


def made_record(folder, kind):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = AdamW(model.parameters(), lr=torch.tensor(0.1), foreach=False)
    window = segue.WeightedAccumulator(model, microbatches=4)
    training = segue.Training(model, optimizer, accumulator=window)
    step(model, optimizer)
    model(torch.randn(4, 3)).sum().backward()
    window.add_sum(weight=4)
    model.weight.grad = torch.ones(2, 3)
    record = training.capture({"array": np.arange(3), "list": [torch.ones(2)]})
    if kind == "loaded":
        segue.save(record, folder / "it")
        record = segue.load(folder / "it")
    return (model, optimizer, window), record


def handed_out(record):
    """Everything that a record makes for people."""
    slots = record.optimizers["optimizer"].state["weight"]
    group = record.optimizers["optimizer"].groups[0]
    return [
        record.state,
        {name: slot.to_host() for name, slot in slots.items()},
        {name: tensor.to_host() for name, tensor in record.model.tensors.items()},
        group.options["lr"].to_host(),
        record.gradients.to_tensors(),
        record.window.sums.to_tensors(),
        record.streams["torch"].to_host(),
    ]


@pytest.mark.parametrize("kind", ["captured", "loaded"])
def test_what_a_record_hands_out_is_new_each_time_and_may_be_spoilt(kind, tmp_path):
    objects, record = made_record(tmp_path, kind)
    first, second = handed_out(record), handed_out(record)
    apart(objects, record, *first, *second)
    expected, seen = digests(record), live(objects[0], objects[1])
    expected_values = raw(second)
    spoil(first)
    assert digests(record) == expected
    assert live(objects[0], objects[1]) == seen
    assert raw(second) == raw(handed_out(record)) == expected_values


@pytest.mark.parametrize("kind", ["captured", "loaded"])
def test_records_of_parts_share_nothing_with_what_they_are_of_or_go_into(kind, tmp_path):
    (model, optimizer, window), whole = made_record(tmp_path, kind)
    parts = [
        segue.capture_module(model), segue.capture_optimizer(optimizer, model), segue.capture_gradients(model),
        window.to_record(),
    ]  # fmt: skip
    apart((model, optimizer, window), whole, *parts)
    expected = [raw(live(model, optimizer))]
    other = nn.Linear(3, 2)
    other_optimizer = AdamW(other.parameters(), lr=torch.tensor(0.1), foreach=False)
    other_window = segue.WeightedAccumulator(other, microbatches=4)
    for _ in range(2):
        segue.restore_module(parts[0], other)
        segue.restore_optimizer(parts[1], other_optimizer, other)
        segue.restore_gradients(parts[2], other)
        other_window.load_record(parts[3])
        apart((model, optimizer, window), (other, other_optimizer, other_window), whole, *parts)
    spoil([p.data for p in other.parameters()] + [p.grad for p in other.parameters() if p.grad is not None])
    spoil(list(other_optimizer.state.values()))
    assert [raw(live(model, optimizer))] == expected
    segue.restore_module(parts[0], other)
    assert raw(other.weight) == raw(model.weight)


def test_bytes_that_the_caller_may_still_write_to_are_no_record_s():
    _, record = made_record(None, "captured")
    data = bytearray(segue.to_bytes(record))
    read = segue.from_bytes(data)
    expected = digests(record)
    data[:] = bytes(len(data))
    assert digests(read) == expected
    read.verify()


# --- one record, written and restored at once ---


class Pausing:
    """A filesystem that stops in mid-file, until it is told to go on."""

    def __init__(self):
        self.inner, self.stopped, self.go_on = LocalFilesystem(), threading.Event(), threading.Event()
        self.go_on.set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def create_file(self, name, within):
        return PausingFile(self, self.inner.create_file(name, within))


class PausingFile:
    def __init__(self, filesystem, inner):
        self.filesystem, self.inner = filesystem, inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def write(self, data):
        count = self.inner.write(data[: max(1, len(data) // 2)])
        self.filesystem.stopped.set()
        assert self.filesystem.go_on.wait(60)
        return count


@pytest.mark.parametrize("kind", ["captured", "captured beside", "loaded"])
def test_a_record_is_restored_while_that_same_record_is_being_written(kind, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    optimizer = AdamW(model.parameters(), lr=0.1)
    training = segue.Training(model, optimizer)
    for _ in range(3):
        step(model, optimizer)
    record = training.capture_async().result() if kind == "captured beside" else training.capture({"at": 3})
    if kind == "loaded":
        segue.save(record, tmp_path / "first")
        record = segue.load(tmp_path / "first")
    expected = digests(record)
    step(model, optimizer)
    after = live(model, optimizer)
    filesystem = Pausing()
    with DirectoryStore(tmp_path / "run", filesystem=filesystem) as store:
        filesystem.stopped.clear()  # `acquire` has written run.json
        filesystem.go_on.clear()
        writer = threading.Thread(target=store.put, args=(record,))
        writer.start()
        try:
            assert filesystem.stopped.wait(60)
            for _ in range(2):
                training.restore(record)
                step(model, optimizer)
                assert live(model, optimizer) == after
            spoil([parameter.data for parameter in model.parameters()])
            training.restore(record)
            step(model, optimizer)
        finally:
            filesystem.go_on.set()
            writer.join(60)
    assert not writer.is_alive()
    assert live(model, optimizer) == after
    stored = segue.load(tmp_path / "run" / "ckpt-000000001")
    assert digests(stored) == digests(record) == expected
    stored.verify()
    apart((model, optimizer), record, stored)
