"""The claim, for weights that are computed from others: cut anywhere and continued in a new process, the bits are the same.

And reading is no step: a capture doesn't compute a weight, which would move the vectors of a spectral norm.
"""

import hashlib
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import segue
from segue.errors import ContractMismatch, NotAtBoundary
from tests.cases.state import everything, live
from tests.exactness.parametrized_trainings import CASES, Run, seed
from tests.quantized_state.plans import TOTAL, Plan
from tests.quantized_state.processes import assert_same, carried_out

TRAININGS = "tests.exactness.parametrized_trainings"


def check(cuts, root):
    carried_out(Plan(tuple(CASES), str(root), seed=7, trainings=TRAININGS), hash_seed=1)
    carried_out(Plan(tuple(CASES), str(root), cuts, seed=1000, trainings=TRAININGS), hash_seed=2)
    for case, cut in itertools.product(CASES, cuts):
        assert_same(root, case, cut, TOTAL)


def test_cut_and_continued_in_a_new_process(tmp_path):
    check((3, 4), tmp_path)


@pytest.mark.exact
def test_cut_at_every_boundary_and_continued_in_a_new_process(tmp_path):
    check(tuple(range(1, TOTAL)), tmp_path)


def run(case):
    seed(3)
    made = Run(CASES[case])
    for number in range(3):
        made.microbatch(number)
    return made


@pytest.mark.parametrize("case", CASES)
def test_a_capture_computes_no_weight_and_moves_nothing(case):
    watched = run(case)
    counted = []

    def count(module, *_):
        counted.append(module)

    computing = [
        module
        for layer in watched.layers
        if parametrize.is_parametrized(layer)
        for module in layer.parametrizations.modules()
    ]
    for module in computing:
        module.register_forward_hook(count)
    before = everything(watched.model, watched.optimizer)
    versions = [tensor._version for tensor in (*watched.model.parameters(), *watched.model.buffers())]
    attributes = [dict(vars(module)) for module in watched.model.modules()]
    record = watched.training.capture()
    watched.training.check(record)
    segue.capture_module(watched.model)
    assert counted == []
    assert everything(watched.model, watched.optimizer) == before
    assert [tensor._version for tensor in (*watched.model.parameters(), *watched.model.buffers())] == versions
    for module, attribute in zip(watched.model.modules(), attributes, strict=True):
        assert all(vars(module)[name] is value for name, value in attribute.items())


@pytest.mark.parametrize("case", CASES)
def test_captured_at_every_boundary_it_is_the_run_that_never_is(case):
    def digest(captures):
        seed(5)
        made = Run(CASES[case])
        losses = []
        for number in range(6):
            losses.append(made.microbatch(number).hex())
            if captures:
                made.training.capture()
        return losses, hashlib.sha256(repr(live(made.model, made.optimizer)).encode()).hexdigest()

    assert digest(captures=True) == digest(captures=False)


@pytest.mark.parametrize(
    ("before", "after"), [("plain", case) for case in CASES] + [(case, "plain") for case in CASES]
)
def test_a_weight_that_is_computed_on_one_side_only_is_told(before, after):
    kinds = {**CASES, "plain": lambda layer: layer}
    seed(1)
    record = Run(kinds[before]).training.capture()
    other = Run(kinds[after])
    left = everything(other.model, other.optimizer)
    with pytest.raises(ContractMismatch, match="computed from other tensors") as caught:
        other.training.restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert {"model.parametrized.0.weight", "model.parametrized.2.weight"} <= set(codes)
    # Nothing more of the tensors behind it, and no new name is proposed, which would be no remedy.
    assert not any(
        code.startswith(("model.missing.", "model.extra.")) and ".weight" in code for code in codes
    )
    assert "rename" not in str(caught.value)
    assert everything(other.model, other.optimizer) == left


def test_inside_cached_weights_nothing_is_captured_or_restored():
    made = run("spectral norm")
    record = made.training.capture()
    with parametrize.cached():
        made.training.restore(record)  # nothing is held yet
        made.model(torch.ones(1, 6))
        before = everything(made.model, made.optimizer)
        for refused in (
            made.training.capture, lambda: made.training.check(record), lambda: made.training.restore(record),
            lambda: segue.capture_module(made.model), lambda: segue.restore_module(record.model, made.model),
        ):  # fmt: skip
            with pytest.raises(NotAtBoundary, match="cached"):
                refused()
        assert everything(made.model, made.optimizer) == before
    made.training.restore(record)


def test_a_recurrent_layer_with_normalised_weights_goes_on():
    def made():
        layer = nn.utils.parametrizations.weight_norm(nn.LSTM(3, 3), "weight_hh_l0")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        return layer, optimizer, segue.Training(layer, optimizer)

    def step(layer, optimizer):
        layer(torch.randn(2, 1, 3))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    seed(1)
    layer, optimizer, training = made()
    step(layer, optimizer)
    record = training.capture()
    step(layer, optimizer)
    again, other, resumed = made()
    resumed.restore(record)
    step(again, other)
    assert live(again, other) == live(layer, optimizer)
