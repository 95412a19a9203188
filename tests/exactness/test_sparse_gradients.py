"""Sparse gradients pending in a window, uncoalesced and with duplicates: cut anywhere, the same bits."""

import shutil
import signal

import pytest

from tests.exactness import sparse
from tests.exactness.processes import in_new_process


@pytest.fixture(scope="module", params=["grad", "plain", "weighted"])
def whole(request, tmp_path_factory):
    """The uninterrupted run, with the checkpoint of each of its microbatches."""
    folder = tmp_path_factory.mktemp(request.param)
    assert in_new_process(sparse.train, request.param, str(folder / "run"), str(folder / "out")) == 0
    return request.param, folder


def test_a_run_with_sparse_gradients_killed_in_every_window_ends_in_the_same_bits(whole, tmp_path):
    kind, reference = whole
    for seed, stop in enumerate((1, 5, 8, None), 1):
        code = in_new_process(sparse.train, kind, str(tmp_path / "run"), str(tmp_path / "out"), stop, seed)
        assert code == (0 if stop is None else -signal.SIGKILL)
    assert (tmp_path / "out").read_text() == (reference / "out").read_text()


def test_a_run_with_sparse_gradients_cut_at_each_microbatch_ends_in_the_same_bits(whole, tmp_path):
    kind, reference = whole
    for cut in range(1, sparse.TOTAL):
        root = tmp_path / str(cut)
        shutil.copytree(reference / "run", root / "run")
        for checkpoint in (root / "run").glob("ckpt-*"):
            if int(checkpoint.name.removeprefix("ckpt-")) > cut:
                shutil.rmtree(checkpoint)
        assert in_new_process(sparse.train, kind, str(root / "run"), str(root / "out"), None, cut) == 0
        assert (root / "out").read_text() == (reference / "out").read_text(), cut
