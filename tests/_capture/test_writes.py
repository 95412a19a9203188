"""Writes as data: scratch is told beforehand, and an assignment happens when it is run."""

import torch

from segue._capture.writes import ObjectWrite, TensorWrite
from tests._store.records import tensor


def test_scratch_is_needed_for_targets_that_bytes_cannot_be_read_into():
    captured = tensor(shape=(2, 3))
    assert TensorWrite("w", torch.zeros(2, 3), captured).scratch_bytes == 0
    assert TensorWrite("w", torch.zeros(3, 2).t(), captured).scratch_bytes == 24
    assert ObjectWrite("o", list).scratch_bytes == 0


def test_nothing_happens_before_a_write_is_run():
    done, target = [], torch.zeros(2, 3).t().contiguous().t()
    writes = [TensorWrite("w", torch.zeros(2, 3), tensor()), ObjectWrite("o", lambda: done.append(1))]
    assert done == []
    for write in writes:
        write.run(torch.empty(0, dtype=torch.uint8))
    assert done == [1]
    assert writes[0].target.view(torch.uint8).tolist() == tensor().to_host().view(torch.uint8).tolist()
    captured = tensor(shape=(2, 3))
    TensorWrite("w", target, captured).run(torch.empty(24, dtype=torch.uint8))
    assert target.contiguous().view(torch.uint8).tolist() == captured.to_host().view(torch.uint8).tolist()
