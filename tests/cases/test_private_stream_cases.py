"""B42 and B43: a state of randomness that is not taken over is never passed over; private generators are state."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

import segue
from segue import RngStreams, Training
from segue._record.tree import same
from segue.errors import ComponentMismatch, StoreError, UnsupportedState
from tests.cases import children


def test_b43_generators_of_optimizer_sampler_and_augmentation_go_on_in_a_process_that_seeds_again(tmp_path):
    live = children.run("private_generators", tmp_path / "record", "save")
    assert children.run("private_generators", tmp_path / "record", "resume") == live
    # The very same program is another one where private generators are not taken over: so they decide something.
    assert children.run("private_generators", tmp_path / "record", "forget") != live


class Rounding(torch.optim.SGD):
    def __init__(self, parameters, generator):
        super().__init__(parameters, lr=0.1)
        self.gen = generator


def training(generator, **components):
    model = nn.Linear(8, 8, dtype=torch.bfloat16)
    return Training(model, Rounding(model.parameters(), generator), components=components)


def test_b43_a_generator_that_nothing_can_restore_is_refused_at_save():
    with pytest.raises(UnsupportedState) as caught:
        training(random.SystemRandom()).capture()
    assert (caught.value.code, caught.value.where) == ("capture.stream", "optimizer.optimizer.gen")


def test_b43_seeding_after_the_restore_is_not_seen_and_only_concerns_the_global_streams():
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    record = training(one).capture()
    training(other).restore(record)
    torch.manual_seed(3)
    assert torch.rand(3, generator=one).tolist() == torch.rand(3, generator=other).tolist()


def state_of_everything():
    return RngStreams().capture()


@pytest.mark.parametrize("damaged", ["training.safetensors", "manifest.json", "state.json"])
def test_b42_a_truncated_file_is_refused_and_no_stream_has_moved(tmp_path, damaged):
    one, other = random.Random(1), random.Random(2)
    segue.save(training(torch.Generator(), own=Own(one)).capture(), tmp_path / "x")
    path = tmp_path / "x" / damaged
    path.write_bytes(path.read_bytes()[:-40])
    resumed = training(torch.Generator(), own=Own(other))
    before, private = state_of_everything(), other.getstate()
    with pytest.raises(StoreError):
        resumed.restore(segue.load(tmp_path / "x"))
    assert same(state_of_everything(), before)
    assert other.getstate() == private


class Own:
    """Holds a generator, and saves nothing of it."""

    def __init__(self, rng):
        self.rng = rng

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def spoiled(record, name):
    sections = record.sections()
    return segue.TrainingRecord.from_sections({**sections, "streams": without(sections["streams"], name)})


def without(items, name):
    return {key: value for key, value in items.items() if key != name}


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "accelerators"])
def test_b42_a_stream_that_was_dropped_from_the_record_is_refused(name):
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    record = spoiled(training(one).capture(), name)
    resumed = training(other)
    before, private = state_of_everything(), other.get_state()
    with pytest.raises(ComponentMismatch) as caught:
        resumed.restore(record)
    assert caught.value.code == f"streams.{name}"
    assert same(state_of_everything(), before)
    assert torch.equal(other.get_state(), private)


def test_b42_a_private_stream_that_was_dropped_is_refused():
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    sections = training(one).capture().sections()
    record = segue.TrainingRecord.from_sections(without(sections, "private_streams"))
    with pytest.raises(ComponentMismatch) as caught:
        training(other).restore(record)
    assert caught.value.code == "streams.private.optimizer.optimizer.gen"


def test_b42_the_state_of_python_through_json_stays_what_it_was(tmp_path):
    """JSON alone makes a list of the tuple, which `setstate` refuses; the typed encoding keeps it, as a caller's too."""
    random.seed(3)
    random.gauss(0, 1)
    with pytest.raises((TypeError, ValueError)):
        random.Random().setstate(json.loads(json.dumps(random.getstate())))
    live = training(torch.Generator())
    segue.save(live.capture({"mine": random.getstate()}), tmp_path / "x")
    expected = [random.gauss(0, 1) for _ in range(3)]
    state = training(torch.Generator()).restore(segue.load(tmp_path / "x"))
    assert [random.gauss(0, 1) for _ in range(3)] == expected
    again = random.Random()
    again.setstate(state["mine"])
    assert [again.gauss(0, 1) for _ in range(3)] == expected


def test_b39_a_pending_gaussian_of_each_kind_goes_on():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    draws = [lambda: random.gauss(0, 1), lambda: float(np.random.normal()), lambda: torch.randn(1).item()]
    for draw in draws:
        draw()
    record = training(torch.Generator()).capture()
    expected = [[draw() for draw in draws] for _ in range(3)]
    training(torch.Generator()).restore(record)
    assert [[draw() for draw in draws] for _ in range(3)] == expected
