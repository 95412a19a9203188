"""B30: two ranks with different numbers of tokens, in real processes that talk over gloo."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.cases import ranks
from tests.cases.children import ROOT


def torchrun(run, cut, out):
    """Run two ranks up to a microbatch; return what each of them ended with."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0",
         "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", "tests.cases.ranks", run, str(cut), out],
        capture_output=True, text=True, cwd=ROOT, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(out.with_name(f"{out.name}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return torchrun(folder / "run", ranks.ROUNDS, folder / "out")


def test_b30_the_mean_is_that_of_the_tokens_of_all_ranks(whole):
    model, optimizer, _ = ranks.build()
    for update, found in enumerate(whole[0]["gradients"]):
        microbatches = range(ranks.WINDOW * update, ranks.WINDOW * (update + 1))
        samples = [ranks.sample(microbatch, rank) for microbatch in microbatches for rank in (0, 1)]
        x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
        (ranks.loss_sum(model, x, y) / len(x)).backward()
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            assert (parameter.grad - torch.tensor(gradient)).abs().max() < 1e-6
        optimizer.step()
        optimizer.zero_grad()
    assert whole[0]["bits"] == whole[1]["bits"]


@pytest.mark.parametrize(
    "cut", [pytest.param(3, marks=pytest.mark.exact), pytest.param(5, marks=pytest.mark.exact)]
)
def test_b30_a_run_of_two_ranks_cut_in_mid_window_ends_in_the_same_bits(cut, whole, tmp_path):
    stopped = torchrun(tmp_path / "run", cut, tmp_path / "stopped")
    assert [rank["pending"] for rank in stopped] == list(map(float, ranks.TOKENS[(cut - 1) % 4]))
    resumed = torchrun(tmp_path / "run", ranks.ROUNDS, tmp_path / "out")
    assert [rank["bits"] for rank in resumed] == [rank["bits"] for rank in whole]
