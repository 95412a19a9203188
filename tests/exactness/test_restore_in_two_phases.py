"""Everything that can refuse refuses before the first write; then writes go in a fixed order, streams last."""

import os
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from torch import nn

import segue
from segue._capture.writes import ObjectWrite
from segue._record.training import Topology
from segue.errors import (
    ComponentMismatch,
    ContractMismatch,
    CorruptCheckpoint,
    DeviceMismatch,
    MismatchError,
    RestoreInterrupted,
    TopologyMismatch,
    UnsupportedFormat,
)
from tests.exactness.live import everything
from tests.exactness.trainings import MODES, Run, seed

MODE = MODES["adamw-foreach-fp32"]


def trained(number_of_seed=1, microbatches=6):
    seed(number_of_seed)
    run = Run(MODE)
    for number in range(microbatches):
        run.microbatch(number)
    return run


def with_components(run, **components):
    run.training = segue.Training(
        run.net,
        run.optimizer,
        run.scheduler,
        accumulator=run.window,
        components={"ema": run.ema, **components},
    )
    return run


class Stubborn:
    """An object with state that refuses to load when told so."""

    def __init__(self, value, log=None, refuses=False):
        self.value, self.log, self.refuses = value, log if log is not None else [], refuses

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]
        self.log.append(self.value)
        torch.rand(1)  # user code may draw; the streams are restored after it, and put back when it refuses
        if self.refuses and self.value != "before":
            raise ValueError("no")


def test_all_differences_are_reported_together_in_the_order_of_the_checks():
    record = trained().training.capture()
    run = trained(2)
    run.net.register_buffer("more", torch.zeros(1))
    run.net.mix.weight.requires_grad_(False)
    run.optimizer.param_groups[0]["weight_decay"] = 0.5
    run.optimizer = type(run.optimizer)(run.net.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 3)
    window = segue.GradientAccumulator(run.net)
    training = segue.Training(
        run.net, run.optimizer, scheduler, accumulator=window, components={"x": Stubborn(1)}, rng=None
    )
    with pytest.raises(MismatchError) as caught:
        training.restore(record)
    kinds = [finding.code.split(".")[0] for finding in caught.value.findings]
    order = ["model", "optimizer", "gradient", "window", "scheduler", "component", "streams"]
    assert [kind for kind in order if kind in kinds] == list(dict.fromkeys(kinds))
    codes = [finding.code for finding in caught.value.findings]
    for code in ("model.extra.more", "model.requires_grad.mix.weight", "optimizer.optimizer.groups", "window.kind",
                 "scheduler.scheduler.class", "component.ema", "component.x", "streams"):  # fmt: skip
        assert code in codes
    assert isinstance(caught.value, ContractMismatch)
    assert all(code in str(caught.value) for code in codes[:20])


def test_the_device_comes_first():
    run = trained()
    record = run.training.capture().with_device("cuda:0")
    run.net.mix.weight.requires_grad_(False)
    before = everything(run)
    with pytest.raises(DeviceMismatch) as caught:
        run.training.restore(record)
    assert everything(run) == before
    errors = [finding.error for finding in caught.value.findings]
    assert errors == sorted(errors, key=lambda error: error is not DeviceMismatch)
    assert errors[-1] is ContractMismatch


def test_another_version_is_refused_before_anything_is_compared():
    run = trained()
    record = replace(run.training.capture().with_device("cuda:0"), version=2, topology=Topology(2, 1))
    before = everything(run)
    with pytest.raises(UnsupportedFormat, match="another version"):
        run.training.restore(record)
    assert everything(run) == before


def test_the_topology_comes_before_the_device_and_that_before_all_else():
    run = trained()
    record = replace(run.training.capture().with_device("cuda:0"), topology=Topology(2, 1))
    run.net.mix.weight.requires_grad_(False)
    before = everything(run)
    with pytest.raises(TopologyMismatch) as caught:
        run.training.restore(record)
    assert everything(run) == before
    errors = [finding.error for finding in caught.value.findings]
    assert list(dict.fromkeys(errors)) == [TopologyMismatch, DeviceMismatch, ContractMismatch]


class Spies:
    """Objects that are asked in the course of a restore, and note what of it has happened by then."""

    def __init__(self, value):
        self.log = log = []
        self.net = net = nn.Linear(2, 2)
        nn.init.constant_(net.weight, value)
        self.optimizer = optimizer = torch.optim.AdamW(net.parameters(), lr=0.0)
        net.weight.grad = torch.full_like(net.weight, value)
        optimizer.step()
        self.scheduler = scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        scheduler.last_epoch = int(value)
        window = segue.GradientAccumulator(net, microbatches=2)
        window.add()
        net.weight.grad = torch.full_like(net.weight, value)

        def note(who):
            log.append((who, standing()))

        def standing():
            return {
                "model": net.weight[0, 0].item(),
                "optimizer": optimizer.param_groups[0]["lr"],
                "gradient": net.weight.grad[0, 0].item(),
                "scheduler": scheduler.last_epoch,
                "window": [total[0, 0].item() for _, total in window.sums()],
            }

        class Component:
            def capture(self):
                return {}

            def check(self, state):
                note("check component")
                return []

            def restore(self, state):
                note("component")

        class State(defaultdict):
            def clear(self):
                note("optimizer")
                super().clear()

        class Window:
            """An accumulator of the program's own."""

            def check_window(self, state):
                note("check window")

            def replace_window(self, *window_and_consumed):
                note("window")
                window.replace_window(*window_and_consumed)

            def __getattr__(self, name):
                return getattr(window, name)

        class Streams(segue.RngStreams):
            def check(self, record):
                note("check streams")
                yield from super().check(record)

            def plan(self, record):
                writes = super().plan(record)
                return [ObjectWrite("spy", lambda: note("streams")), *writes]

        optimizer.state = State(dict, optimizer.state)
        self.training = segue.Training(
            net, optimizer, scheduler, accumulator=Window(), components={"a": Component()}, rng=Streams()
        )
        optimizer.param_groups[0]["lr"] = value


def test_checks_and_then_writes_are_in_one_order():
    record = Spies(2.0).training.capture()
    spies = Spies(1.0)
    spies.training.restore(record)
    assert [who for who, _ in spies.log] == [
        "check window", "check component", "check streams", "component", "optimizer", "window", "streams"
    ]  # fmt: skip
    unchanged = {"model": 1.0, "optimizer": 1.0, "gradient": 1.0, "scheduler": 1, "window": [1.0]}
    written = {"model": 2.0, "optimizer": 2.0, "gradient": 2.0, "scheduler": 2, "window": [2.0]}
    seen = dict(spies.log)
    for who in ("check window", "check component", "check streams", "component"):
        assert seen[who] == unchanged
    assert seen["optimizer"] == {**unchanged, "model": 2.0}
    assert seen["window"] == {**written, "scheduler": 1, "window": [1.0]}
    assert seen["streams"] == written


def test_a_component_that_refuses_is_put_back_and_nothing_else_was_touched():
    record = with_components(trained(), a=Stubborn("captured"), b=Stubborn("captured")).training.capture()
    log = []
    run = with_components(
        trained(2, microbatches=5), a=Stubborn("before", log), b=Stubborn("before", log, refuses=True)
    )
    before = everything(run)
    with pytest.raises(ComponentMismatch, match=r"component\.b") as caught:
        run.training.restore(record)
    assert everything(run) == before
    assert log == ["captured", "captured", "before", "before"]
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_component_that_can_not_be_put_back_interrupts():
    class Broken(Stubborn):
        def load_state_dict(self, state):
            self.value = "broken"
            raise ValueError("no")

    record = with_components(trained(), a=Broken("captured")).training.capture()
    run = with_components(trained(2), a=Broken("before"))
    with pytest.raises(RestoreInterrupted, match="rebuild"):
        run.training.restore(record)


def test_a_component_that_changes_the_model_is_refused_by_the_second_contract_check():
    class Freezes(Stubborn):
        def load_state_dict(self, state):
            self.value = state["value"]
            self.net.mix.weight.requires_grad_(self.value == "before")

    def made(run, value):
        component = Freezes(value)
        component.net = run.net
        return with_components(run, a=component)

    record = made(trained(), "captured").training.capture()
    run = made(trained(2), "before")
    before = everything(run)
    with pytest.raises(ContractMismatch, match="newly frozen"):
        run.training.restore(record)
    assert everything(run) == before


def test_components_come_before_tensors_and_streams_come_last():
    order = []

    class Spy:
        def capture(self):
            return {}

        def check(self, state):
            order.append(("check", net.weight.detach().clone().sum().item()))
            return []

        def restore(self, state):
            order.append(("restore", net.weight.detach().clone().sum().item()))
            torch.rand(3)

    def made():
        net = nn.Linear(2, 2)
        return net, segue.Training(net, torch.optim.SGD(net.parameters(), lr=0.1), components={"spy": Spy()})

    seed(1)
    net, training = made()
    record = training.capture()
    expected = torch.rand(4)
    seed(2)
    net, training = made()
    own = net.weight.detach().sum().item()
    training.restore(record)
    assert order == [("check", own), ("restore", own)]
    assert torch.equal(torch.rand(4), expected)


def test_a_component_that_writes_to_the_model_and_then_refuses_interrupts():
    class Writes(Stubborn):
        def load_state_dict(self, state):
            with torch.no_grad():
                self.net.mix.weight.zero_()
            super().load_state_dict(state)

    def made(run, value, refuses=False):
        component = Writes(value, refuses=refuses)
        component.net = run.net
        return with_components(run, a=component)

    record = made(trained(), "captured").training.capture()
    run = made(trained(2), "before", refuses=True)
    with pytest.raises(RestoreInterrupted, match="written to the model"):
        run.training.restore(record)
    with pytest.raises(RestoreInterrupted, match="half way"):
        run.training.capture()


def test_an_interrupted_restore_can_not_be_saved_but_can_be_repeated():
    class Interrupts(segue.RngStreams):
        """Stands in the place of the streams, which are written last."""

        active = True

        def capture(self):
            return {}

        def check(self, record):
            return []

        def plan(self, record):
            return [ObjectWrite("streams", self.write)]

        def write(self):
            if self.active:
                raise KeyboardInterrupt

    def made(run):
        rng = Interrupts()
        run.training = segue.Training(
            run.net,
            run.optimizer,
            run.scheduler,
            accumulator=run.window,
            components={"ema": run.ema},
            rng=rng,
        )
        return run, rng

    reference, _ = made(trained())
    record = reference.training.capture()
    run, rng = made(trained(2))
    with pytest.raises(KeyboardInterrupt):
        run.training.restore(record)
    with pytest.raises(RestoreInterrupted, match="half way"):
        run.training.capture()
    rng.active = False
    run.training.restore(record)
    assert segue.diff(record, run.training.capture()).identical


def test_a_refusal_leaves_the_streams_where_reading_a_component_moved_them():
    class Draws(Stubborn):
        def state_dict(self):
            torch.rand(1)
            return super().state_dict()

    record = with_components(trained(), a=Stubborn("captured")).training.capture()
    record = replace(
        record, components={**record.components, "a": replace(record.components["a"], class_name="x.Draws")}
    )
    Draws.__module__, Draws.__qualname__ = "x", "Draws"
    run = with_components(trained(2), a=Draws("before", refuses=True))
    before = everything(run)
    with pytest.raises(ComponentMismatch):
        run.training.restore(record)
    assert everything(run) == before


def test_damaged_bytes_are_found_before_anything_is_written(tmp_path):
    path = tmp_path / "checkpoint"
    segue.save(trained().training.capture(), path)
    record = segue.load(path)
    file = path / "training.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    os.chmod(file, 0o600)
    file.write_bytes(data)
    run = trained(2)
    before = everything(run)
    with pytest.raises(CorruptCheckpoint, match=r"training\.safetensors"):
        run.training.restore(record)
    assert everything(run) == before


def test_bytes_that_change_after_they_were_verified_interrupt_the_restore(tmp_path):
    path = tmp_path / "checkpoint"

    class Vandal:
        def capture(self):
            return {}

        def check(self, state):
            return []

        def restore(self, state):
            for name in ("model.safetensors", "training.safetensors"):
                os.truncate(path / name, 100)

    segue.save(with_components(trained(), a=Vandal()).training.capture(), path)
    run = with_components(trained(2), a=Vandal())
    with pytest.raises(RestoreInterrupted, match="rebuild"):
        run.training.restore(segue.load(path))


def test_objects_keep_their_identity():
    run = trained()
    record = run.training.capture()
    for number in range(6, 9):
        run.microbatch(number)
    before = identities(run)
    run.training.restore(record)
    assert identities(run) == before
    assert segue.diff(record, run.training.capture()).identical


def identities(run):
    return {
        "parameters": [(id(p), p.data_ptr()) for p in run.net.parameters()],
        "groups": [id(group) for group in run.optimizer.param_groups],
        "state": id(run.optimizer.state),
        "slots": {id(p): [id(t) for t in slots.values()] for p, slots in run.optimizer.state.items()},
    }
