"""Loaders that accelerate has prepared are refused, with what to hand in."""

import pytest
from torch.utils.data import DataLoader

import segue
from segue.errors import UnsupportedState

accelerate = pytest.importorskip("accelerate")


@pytest.mark.parametrize("replay", [False, True])
def test_a_loader_that_accelerate_has_prepared_is_refused_with_the_lines_instead(replay):
    plain = DataLoader(list(range(10)), 3, sampler=segue.ExactSampler(10, batch_size=3))
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    with pytest.raises(UnsupportedState, match="accelerate has prepared") as caught:
        segue.DataPosition(prepared, replay=replay)
    assert caught.value.code == "capture.data.loader"
    assert "send_to_device" in caught.value.hint


def test_the_loader_from_before_is_taken_and_batches_are_moved_in_the_loop():
    plain = DataLoader(list(range(10)), 3, sampler=segue.ExactSampler(10, batch_size=3))
    accelerator = accelerate.Accelerator(cpu=True)
    moved = [
        accelerate.utils.send_to_device(batch, accelerator.device) for batch in segue.DataPosition(plain)
    ]
    assert sorted(number for batch in moved for number in batch.tolist()) == list(range(10))
