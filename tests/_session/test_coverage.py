"""When uncovered state is told, refused, or named as none; and that looking changes nothing and takes little."""

import gc
import sys
import time
import warnings
import weakref

import pytest
import torch
from torch import nn

import segue
from segue._capture.layouts import Layouts
from segue._capture.uncovered import Walk, moved, remembered
from segue.errors import UncoveredStateWarning, UnsupportedState
from tests.cases.state import live


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls, self.cache = 0, None

    def forward(self, x):
        self.calls += 1
        self.cache = torch.full((1,), float(self.calls))
        return self.linear(x)


def make(**options):
    torch.manual_seed(0)
    model = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, segue.Training(model, optimizer, **options)


def step(model, optimizer):
    model(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [each for each in caught if each.category is UncoveredStateWarning]


def test_each_path_is_told_once_and_later_ones_alone():
    model, optimizer, training = make()
    step(model, optimizer)
    (first,) = told(lambda: training.capture(1))
    step(model, optimizer)
    assert told(lambda: training.capture(2)) == []
    model.linear.extra = 3
    assert told(lambda: training.capture(3)) == []  # of torch's class: what is hung on it is not looked at
    model.late = 4
    (second,) = told(lambda: training.capture(4))
    assert "model.calls" in str(first.message)
    assert "model.late" in str(second.message)
    assert "model.calls" not in str(second.message)


def test_the_warning_points_at_the_line_of_the_program():
    model, optimizer, training = make()
    step(model, optimizer)
    (warning,) = told(lambda: training.capture(1))
    assert warning.filename == __file__


def test_a_save_of_a_checkpointer_points_there_too(tmp_path):
    model, optimizer, training = make()
    step(model, optimizer)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        (warning,) = told(lambda: checkpointer.save(1))
    assert warning.filename == __file__


def test_strict_refuses_all_at_once_before_anything_is_captured():
    model, optimizer, training = make(strict=True)
    step(model, optimizer)
    before = live(model, optimizer), torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(UnsupportedState) as caught:
            training.capture(1)
        assert caught.value.code == "capture.uncovered"
        assert "model.calls, model.cache" in str(caught.value) or "model.cache, model.calls" in str(
            caught.value
        )
    assert live(model, optimizer) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("entries", [["model.calls", "model.cache"], ["model.ca*"], ["model"], {"*"}])
def test_what_is_named_as_no_state_is_not_told(entries):
    model, optimizer, training = make(strict=True, not_state=entries)
    step(model, optimizer)
    assert told(lambda: training.capture(1)) == []


def test_an_entry_that_fits_nothing_leaves_the_rest_told():
    model, optimizer, training = make(not_state=["model.call", "model.cache"])
    step(model, optimizer)
    (warning,) = told(lambda: training.capture(1))
    assert "model.calls" in str(warning.message)
    assert "model.cache" not in str(warning.message)


@pytest.mark.parametrize("entries", ["model.calls", [3]])
def test_not_state_takes_a_collection_of_paths(entries):
    with pytest.raises(TypeError, match="not_state"):
        make(not_state=entries)


def test_looking_changes_nothing_and_keeps_nothing_alive():
    model, optimizer, training = make(not_state=["model"])

    class Batch:
        pass

    batch = Batch()
    reference = weakref.ref(batch)
    before = live(model, optimizer), torch.get_rng_state()
    training.capture(1)
    assert live(model, optimizer) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    del batch
    gc.collect()
    assert reference() is None


def test_locals_that_the_program_holds_are_left_to_it():
    model, optimizer, training = make(not_state=["model"])
    held = locals()
    training.capture(1)
    assert held["model"] is model
    assert held["optimizer"] is optimizer


def test_a_module_that_was_put_in_the_place_of_another_is_seen_for_the_first_time():
    model = nn.Sequential(Counting())
    optimizer = torch.optim.AdamW(model.parameters())
    training = segue.Training(model, optimizer, not_state=["model.0.cache"])
    other = Counting()
    other.calls, other.linear = 7, model[0].linear
    model[0] = other
    assert told(lambda: training.capture(1)) == []
    other.calls += 1
    assert "model.0.calls: 7 -> 8" in str(told(lambda: training.capture(2))[0].message)


def test_a_single_generator_can_be_handed_in_and_goes_on():
    def build():
        model = nn.Linear(3, 3)
        noise = torch.Generator().manual_seed(5)
        training = segue.Training(
            model, torch.optim.SGD(model.parameters(), lr=0.1), components={"noise": noise}
        )
        return noise, training

    noise, training = build()
    torch.rand(3, generator=noise)
    record = training.capture()
    expected = torch.rand(4, generator=noise)
    fresh, again = build()
    again.restore(record)
    assert torch.equal(torch.rand(4, generator=fresh), expected)


@pytest.mark.skipif(sys.gettrace() is not None, reason="traced code is slow")
def test_a_look_at_a_thousand_modules_takes_few_milliseconds():
    from segue._capture.registered import Registered

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm, self.drop = nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout()
            self.heads, self.scale, self.name = 4, 0.5, "block"

    model = nn.Sequential(*[Block() for _ in range(250)])
    registered, layouts = Registered({"model": model}, {}), Layouts()

    def look():
        walk = Walk(registered, layouts)
        walk.module(model, "model", "model")
        return walk.held

    first = remembered(look())
    spent = []
    for _ in range(7):
        start = time.process_time()
        assert list(moved(first, look())) == []
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05, spent  # 5 ms on an idle core; cores of tests are shared


def test_best_weights_that_are_replaced_and_kept_are_told():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = {name: p.detach().clone() for name, p in model.named_parameters()}
    training = segue.Training(model, optimizer)
    with torch.no_grad():
        model.weight.add_(0.01)
    best = {name: p.detach().clone() for name, p in model.named_parameters()}
    training.capture()
    with pytest.warns(UncoveredStateWarning, match=r"segue\.StateOf\(best\)"):
        training.capture()
    assert best
