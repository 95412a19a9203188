"""Quantized state in every precision: its codes, scales and tables are what they were; all else is converted."""

import pytest
import torch

import segue
from segue._record.composite import CapturedSubclass, ConvertedTensor
from segue._record.precision import converted_tensors

CASES = ("ao-8bit", "ao-fp8-bf16", "bnb-adamw-8bit", "base-int8-dynamic", "base-nf4", "trained-int8")


@pytest.fixture(params=CASES)
def trained(request, eager):
    def make(seed):
        eager.seed(seed)
        return eager.Run((eager.TORCHAO | eager.BITSANDBYTES | eager.MODELS)[request.param])

    run = make(1)
    for number in range(3):
        run.microbatch(number)
    return make, run


@pytest.mark.parametrize("precision", ["half", "full", "double"])
def test_quantized_state_is_not_touched(trained, precision):
    _, run = trained
    before = run.training.capture()
    after = before.converted(precision)
    touched = 0
    for name, tensor in before.model.tensors.items():
        if isinstance(tensor, CapturedSubclass):
            touched += 1
            assert after.model.tensors[name] is tensor
    for name, slots in before.optimizers["optimizer"].state.items():
        for slot, value in slots.items():
            if isinstance(value, CapturedSubclass) or "qmap1" in slots:
                touched += 1
                assert after.optimizers["optimizer"].state[name][slot] is value
    assert touched
    assert converted_tensors(after) or precision == "full"


def test_an_exact_one_comes_back_beside_it(trained, tmp_path):
    make, run = trained
    record = run.training.capture()
    segue.save(record, tmp_path / "c", precision="double")
    stored = segue.load(tmp_path / "c")
    assert stored.lossy == ()
    assert any(isinstance(tensor, ConvertedTensor) for tensor in stored.model.tensors.values())
    other = make(2)
    other.training.restore(stored)
    assert segue.diff(other.training.capture(), record).identical
    losses = []
    for each in (run, other):
        torch.manual_seed(9)
        losses.append([each.microbatch(number) for number in range(3, 6)])
    assert losses[0] == losses[1]
    assert segue.diff(other.training.capture(), run.training.capture()).identical
