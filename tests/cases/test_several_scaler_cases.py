"""B33 with its neighbours: two scalers, one for two optimizers, disabled ones, open windows, kernels that skip by themselves."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from segue import Training
from segue.errors import ComponentMismatch, MismatchError
from tests.cases.state import live, raw, stored

STEPS = 18


def new_scaler(**options):
    """So large a scale that fp32 overflows by nature."""
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**127, "growth_interval": 3, **options})


def loss(model, number):
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)) * 8
    return model(rows).pow(2).mean()


def position(*scalers):
    return [
        (scaler.get_scale().hex(), scaler._get_growth_tracker(), scaler.is_enabled()) for scaler in scalers
    ]


def factors(scaler):
    return scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()


class Pair:
    """Two models, each with an optimizer and a scaler of its own, which overflow at different steps."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})
        self.optimizers = {name: AdamW(layer.parameters(), lr=0.1) for name, layer in self.model.items()}
        self.scalers = {
            "a": new_scaler(**options),
            "b": new_scaler(init_scale=2.0**120, growth_interval=2, **options),
        }

    def training(self, **components):
        named = components or {f"{name} scaler": scaler for name, scaler in self.scalers.items()}
        return Training(self.model, self.optimizers, components=named)

    def step(self, number):
        """Step both; return which of the steps were taken."""
        taken = []
        for name, layer in self.model.items():
            before, scaler = raw(layer.weight), self.scalers[name]
            self.optimizers[name].zero_grad()
            scaler.scale(loss(layer, number)).backward()
            scaler.step(self.optimizers[name])
            scaler.update()
            taken.append(before != raw(layer.weight))
        return taken

    def look(self):
        return live(self.model, *self.optimizers.values()), position(*self.scalers.values())


@pytest.mark.parametrize("cut", range(1, STEPS, 3))
def test_b33_two_scalers_go_on_each_with_its_own_scale(cut, tmp_path):
    run = Pair()
    training = run.training()
    taken = [run.step(number) for number in range(cut)]
    record = stored(training.capture(), tmp_path)
    rest = [run.step(number) for number in range(cut, STEPS)]
    assert [a for a, _ in taken + rest] != [b for _, b in taken + rest], (
        "they are to overflow at different steps"
    )
    again = Pair()
    again.training().restore(record)
    assert [again.step(number) for number in range(cut, STEPS)] == rest
    assert again.look() == run.look()


def test_b33_one_of_two_scalers_missing_on_either_side_is_refused_by_its_name(tmp_path):
    run = Pair()
    both = run.training()
    one = run.training(**{"a scaler": run.scalers["a"]})
    for number in range(5):
        run.step(number)
    for training, kept in ((both, ["a"]), (one, ["a", "b"])):
        record = stored(training.capture(), tmp_path)
        program = Pair()
        resumed = program.training(**{f"{name} scaler": program.scalers[name] for name in kept})
        before = program.look()
        with pytest.raises(ComponentMismatch) as caught:
            resumed.restore(record)
        assert [finding.code for finding in caught.value.findings] == ["component.b scaler"]
        assert program.look() == before


def test_b33_scalers_under_other_names_are_refused_as_missing_and_extra(tmp_path):
    run = Pair()
    training = run.training()
    for number in range(5):
        run.step(number)
    record = stored(training.capture(), tmp_path)
    program = Pair()
    resumed = program.training(first=program.scalers["a"], second=program.scalers["b"])
    before = program.look()
    with pytest.raises(ComponentMismatch) as caught:
        resumed.restore(record)
    assert sorted(finding.code for finding in caught.value.findings) == [
        "component.a scaler", "component.b scaler", "component.first", "component.second",
    ]  # fmt: skip
    assert program.look() == before


def test_b33_a_second_scaler_that_can_not_be_restored_leaves_the_first_as_it_was(tmp_path):
    record = stored(Pair().training().capture(), tmp_path)
    program = Pair()
    program.scalers["b"] = new_scaler(enabled=False)
    resumed = program.training()
    for number in range(3):
        program.step(number)
    before = program.look()
    with pytest.raises(ComponentMismatch) as caught:
        resumed.restore(record)
    assert [finding.code for finding in caught.value.findings] == ["component.b scaler.enabled"]
    with pytest.raises(ComponentMismatch):
        resumed.restore(record, accept=["component.b scaler.enabled", "component.b scaler"])
    assert program.look() == before


@pytest.mark.parametrize("cut", [0, 4])
def test_b33_scalers_that_are_disabled_on_both_sides_scale_nothing_and_pass(cut, tmp_path):
    run = Pair(enabled=False)
    training = run.training()
    for number in range(cut):
        run.step(number)
    record = stored(training.capture(), tmp_path)
    again = Pair(enabled=False)
    again.training().restore(record)
    rest = [run.step(number) for number in range(cut, STEPS)]
    assert [again.step(number) for number in range(cut, STEPS)] == rest == [[True, True]] * len(rest)
    assert again.look() == run.look()


class Adversaries(Pair):
    """One scaler over two optimizers: either may overflow, and the scale moves once for both."""

    def training(self):
        return Training(self.model, self.optimizers, components={"scaler": self.scalers["a"]})

    def step(self, number):
        scaler, before = self.scalers["a"], [raw(layer.weight) for layer in self.model.values()]
        for name, layer in self.model.items():
            self.optimizers[name].zero_grad()
            scaler.scale(loss(layer, number)).backward()
        for optimizer in self.optimizers.values():
            scaler.step(optimizer)
        scaler.update()
        return [then != raw(layer.weight) for then, layer in zip(before, self.model.values(), strict=True)]


@pytest.mark.parametrize("cut", range(1, STEPS, 3))
def test_b33_one_scaler_of_two_optimizers(cut, tmp_path):
    run = Adversaries()
    training = run.training()
    for number in range(cut):
        run.step(number)
    record = stored(training.capture(), tmp_path)
    rest = [run.step(number) for number in range(cut, STEPS)]
    again = Adversaries()
    again.training().restore(record)
    assert [again.step(number) for number in range(cut, STEPS)] == rest
    assert again.look() == run.look()


KERNELS = {
    "AdamW": lambda p: AdamW(p, lr=0.1),
    "AdamW, foreach": lambda p: AdamW(p, lr=0.1, foreach=True),
    # These are called at an overflow too, and skip by themselves. Not SGD with momentum: where its first step is
    # skipped, fused, its momentum begins with memory that nobody has written, so no run is like another (torch 2.13).
    "AdamW, fused": lambda p: AdamW(p, lr=0.1, fused=True),
    "SGD, fused": lambda p: SGD(p, lr=0.1, fused=True),
}


class Windows:
    """Two microbatches to an update, with the gradients in between scaled."""

    def __init__(self, kernel, **options):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = KERNELS[kernel](self.model.parameters())
        self.scaler = new_scaler(**options)
        self.training = Training(self.model, self.optimizer, components={"scaler": self.scaler})

    def microbatch(self, number):
        self.scaler.scale(loss(self.model, number) / 2).backward()
        if number % 2:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return raw(self.model.weight), position(self.scaler)

    def look(self):
        return live(self.model, self.optimizer), position(self.scaler), factors(self.scaler)


@pytest.mark.parametrize("cut", [1, 2, 9, 14, 21, 28])
@pytest.mark.parametrize("kernel", KERNELS)
def test_b33_in_an_open_window_and_after_one_whether_the_kernel_skips_by_itself_or_not(kernel, cut, tmp_path):
    run = Windows(kernel)
    seen = [run.microbatch(number) for number in range(cut)]
    record = stored(run.training.capture(), tmp_path)
    rest = [run.microbatch(number) for number in range(cut, 2 * STEPS)]
    weights = [weight for weight, _ in (seen + rest)[1::2]]
    assert any(left == right for left, right in itertools.pairwise(weights)), "an overflow is needed"
    again = Windows(kernel)
    again.training.restore(record)
    assert [again.microbatch(number) for number in range(cut, 2 * STEPS)] == rest
    assert again.look() == run.look()


def test_b33_a_scale_and_factors_that_the_run_has_set_by_hand_are_state(tmp_path):
    run = Windows("AdamW")
    for number in range(4):
        run.microbatch(number)
    run.scaler.update(2.0**125)
    run.scaler.set_growth_interval(2)
    run.scaler.set_growth_factor(4.0)
    run.scaler.set_backoff_factor(0.125)
    record = stored(run.training.capture(), tmp_path)
    again = Windows("AdamW")
    again.training.restore(record)
    assert again.look() == run.look()
    rest = [run.microbatch(number) for number in range(4, 2 * STEPS)]
    assert [again.microbatch(number) for number in range(4, 2 * STEPS)] == rest
    assert again.look() == run.look()


def test_b33_one_that_has_never_scaled_is_kept_as_that(tmp_path):
    run = Windows("AdamW")
    record = stored(run.training.capture(), tmp_path)
    again = Windows("AdamW")
    again.training.restore(record)
    rest = [run.microbatch(number) for number in range(2 * STEPS)]
    assert [again.microbatch(number) for number in range(2 * STEPS)] == rest


@pytest.mark.parametrize("moment", ["unscale_", "step"])
def test_b33_between_unscaling_and_update_nothing_is_captured_or_restored(moment, tmp_path):
    record = stored(Windows("AdamW").training.capture(), tmp_path)
    run = Windows("AdamW")
    run.scaler.scale(loss(run.model, 0) * 2.0**-100).backward()
    run.scaler.unscale_(run.optimizer)
    if moment == "step":
        run.scaler.step(run.optimizer)
    before = run.look()
    for act in (run.training.capture, lambda: run.training.restore(record)):
        with pytest.raises(Exception, match="between `unscale_` and `update`") as caught:
            act()
        assert not isinstance(caught.value, MismatchError)
        assert run.look() == before
    run.scaler.update()
    run.training.restore(record)


FACTORS = {
    "growth_interval": (3, 5, lambda scaler: scaler.set_growth_interval(5)),
    "growth_factor": (2.0, 4.0, lambda scaler: scaler.set_growth_factor(4.0)),
    "backoff_factor": (0.5, 0.25, lambda scaler: scaler.set_backoff_factor(0.25)),
}


@pytest.mark.parametrize("factor", FACTORS)
def test_b33_another_factor_in_the_program_is_refused_and_the_program_s_when_accepted(factor, tmp_path):
    then, now, set_by_hand = FACTORS[factor]
    run = Windows("AdamW")
    for number in range(15):
        run.microbatch(number)
    record = stored(run.training.capture(step=7), tmp_path)
    edited = Windows("AdamW", **{factor: now})
    before = edited.look()
    for act in (edited.training.check, edited.training.restore):
        with pytest.raises(ComponentMismatch) as caught:
            act(record)
        [finding] = caught.value.findings
        assert (finding.code, finding.expected, finding.found) == (f"component.scaler.{factor}", then, now)
        assert f'resume(accept=["component.scaler.{factor}"])' in str(caught.value)
        assert edited.look() == before
    for _ in range(2):
        edited.training.restore(record, accept=[finding.code])
        # As if the run had set it by hand, here and now.
        set_by_hand(run.scaler)
        assert edited.look() == run.look()
    later = stored(edited.training.capture(), tmp_path)
    assert later.lineage[-1]["accepted"] == [finding.code]
    rest = [run.microbatch(number) for number in range(15, 2 * STEPS)]
    assert [edited.microbatch(number) for number in range(15, 2 * STEPS)] == rest
    assert edited.look() == run.look()
    # From now on it is what the program asks for, and the one before is another.
    Windows("AdamW", **{factor: now}).training.restore(later)
    unedited = Windows("AdamW")
    before = unedited.look()
    with pytest.raises(ComponentMismatch):
        unedited.training.restore(later)
    assert unedited.look() == before


def test_b33_factors_are_compared_with_what_was_asked_for_not_with_what_the_run_has_set(tmp_path):
    run = Windows("AdamW")
    for _, _, set_by_hand in FACTORS.values():
        set_by_hand(run.scaler)
    record = run.training.capture()
    plain = Windows("AdamW").training.capture()
    for once in range(2):  # written and read, again from a process that resumed
        record = stored(record, tmp_path)
        again = Windows("AdamW")
        again.training.restore(record)
        assert factors(again.scaler) == factors(run.scaler) == (4.0, 0.25, 5), once
        record = again.training.capture()
    # A program that asks for what the run has arrived at is no other; one that asks for a third thing is.
    Windows("AdamW", growth_factor=4.0, backoff_factor=0.25, growth_interval=5).training.restore(record)
    with pytest.raises(ComponentMismatch) as caught:
        Windows("AdamW", growth_interval=7).training.restore(record)
    [finding] = caught.value.findings
    assert (finding.expected, finding.found) == (3, 7)
    assert record.components["scaler"].configured == {
        "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3,
    }  # fmt: skip
    assert plain.components["scaler"].configured is None
