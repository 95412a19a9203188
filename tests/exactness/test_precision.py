"""A run that is stored in a wider precision, cut and continued in new processes, ends as the one that never stopped."""

import json
import warnings

import pytest
import torch

import segue
from segue.errors import LossyRecord
from tests.exactness import precisions
from tests.exactness.processes import in_new_process

MODES = [("bfloat16", "full"), ("float32", "double"), ("float16", "full"), ("bfloat16", torch.float64)]


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: "-".join(map(str, mode)))
def uninterrupted(request, tmp_path_factory):
    dtype, precision = request.param
    folder = tmp_path_factory.mktemp("whole")
    arguments = (dtype, "native", str(folder / "run"), str(folder / "out"), None, 1)
    assert in_new_process(precisions.train, *arguments) == 0
    return dtype, precision, json.loads((folder / "out").read_text())


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_stored_in_a_wider_precision_it_goes_on_bit_for_bit(uninterrupted, cut, tmp_path):
    dtype, precision, expected = uninterrupted
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    for stop, seed in ((cut, 1), (None, 2)):
        assert in_new_process(precisions.train, dtype, precision, run, out, stop, seed) == 0
    assert json.loads((tmp_path / "out").read_text()) == expected


def test_behaviour_99_the_comparison_notices_a_lossy_one(tmp_path):
    """What is refused would indeed not go on as it was."""
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    assert in_new_process(precisions.train, "float32", "half", run, out, 5, 1) == 0
    model, optimizer, scheduler = precisions.build(torch.float32, 2)
    training = segue.Training(model, optimizer, scheduler)
    with segue.Checkpointer(training, run) as checkpointer, pytest.raises(LossyRecord):
        checkpointer.resume({"microbatch": 0})
    with segue.Checkpointer(training, run) as checkpointer:
        checkpointer.resume({"microbatch": 0}, accept=["record.lossy"])
        assert checkpointer.newest().lossy


def test_a_process_that_flushes_denormals_refuses_what_it_would_not_get_back(tmp_path):
    model, optimizer, scheduler = precisions.build(torch.float32, 1)
    with torch.no_grad():
        model[0].weight.fill_(1e-40)
    record = segue.Training(model, optimizer, scheduler, rng=None).capture()
    segue.save(record, tmp_path / "c", precision="double")
    assert segue.load(tmp_path / "c").lossy == ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = in_new_process(
            precisions.restore_where_denormals_are_flushed, str(tmp_path / "c"), str(tmp_path / "out")
        )
    assert code == 0
    assert json.loads((tmp_path / "out").read_text()) == ["record.inexact", True]
