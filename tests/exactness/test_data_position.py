"""Over every kind of loader, every cut goes on with the samples and the bits of the uninterrupted run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.exactness.data_kinds import ALONE, INDEXED, ITERATED, REPLAYED
from tests.exactness.data_runs import DataPlan, carry_out
from tests.exactness.processes import in_new_process

_WITH_WORKERS = [*INDEXED, *ITERATED, "replay", "replay, noise in workers", "replay of a plain loader"]
_WITH_ONE = [
    "shuffle",
    "weighted",
    "own sampler",
    "stateful distributed",
    "stream",
    "drawn",
    "datasets, buffer",
]
_ROWS = [
    *[(kind, "0") for kind in (*INDEXED, *ITERATED, *ALONE, *REPLAYED) if kind != "replay, noise in workers"],
    *[(kind, "1") for kind in _WITH_ONE],
    *[(kind, workers) for kind in _WITH_WORKERS for workers in ("2", "2 living")],
]
# What every `make test` tries, at a few cuts: each way of placing, each kind of workers.
_SAMPLE = [
    ("shuffle", "0"), ("own sampler", "0"), ("stream", "0"), ("datasets alone, buffer", "0"), ("counting", "0"),
    ("nodes, stateful distributed", "0"), ("weighted", "2"), ("stream", "2 living"), ("stateful distributed", "2 living"),
]  # fmt: skip


def traced(folder: Path, name: str) -> list[dict[str, object]]:
    return json.loads((folder / f"{name}.json").read_text())


def uninterrupted(plan: DataPlan) -> list[dict[str, object]]:
    """Run to the end twice, once without any capture: it changes nothing."""
    folder = Path(plan.folder)
    assert in_new_process(carry_out, replace(plan, captures=False)) == 0
    silent = traced(folder, "all")
    assert in_new_process(carry_out, replace(plan, keeps=True)) == 0
    assert traced(folder, "all") == silent
    return silent


def boundaries(trace: list[dict[str, object]]) -> list[int]:
    return [0, *(int(str(entry["boundary"])) for entry in trace)]


def assert_exact_from(plan: DataPlan, cut: int, trace: list[dict[str, object]]) -> None:
    assert in_new_process(carry_out, replace(plan, start=cut, seed=77 + cut)) == 0
    assert traced(Path(plan.folder), f"from-{cut}") == trace[cut:], f"after boundary {cut}"


@pytest.mark.parametrize(("kind", "workers"), _SAMPLE)
def test_a_few_cuts_of_each_way_go_on_exactly(kind, workers, tmp_path):
    plan = DataPlan(kind, workers, str(tmp_path))
    trace = uninterrupted(plan)
    ends = [int(str(entry["boundary"])) for entry in trace if entry["ids"] is None]
    for cut in (2, ends[0] - 1, ends[0]):  # the middle, the body of the last batch, between passes
        assert_exact_from(plan, cut, trace)


@pytest.mark.exact
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "workers"), _ROWS)
def test_every_cut_goes_on_exactly_in_a_new_process(kind, workers, tmp_path):
    plan = DataPlan(kind, workers, str(tmp_path))
    trace = uninterrupted(plan)
    for cut in boundaries(trace)[: len(trace) * 2 // 3 + 1]:  # the third pass is as the second
        assert_exact_from(plan, cut, trace)


@pytest.mark.exact
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "workers"), [row for row in _ROWS if row[1] in ("0", "2 living")])
def test_several_resumes_in_one_pass_each_saved_at_once_go_on_exactly(kind, workers, tmp_path):
    plan = DataPlan(kind, workers, str(tmp_path))
    trace = uninterrupted(plan)
    stops = [1, 2, 4, 5]
    # Every process goes on from what the one before has saved, which first saves again what it has just restored.
    for start, stop in zip(stops, [*stops[1:], None], strict=True):
        chained = replace(plan, start=start, stop=stop, keeps=True, saves_at_once=True, seed=100 + start)
        assert in_new_process(carry_out, chained) == 0
        assert traced(tmp_path, f"from-{start}") == trace[start:stop]


def test_several_resumes_in_one_pass_of_a_sample_go_on_exactly(tmp_path):
    for kind, workers in (("stateful distributed", "0"), ("weighted", "0")):
        folder = tmp_path / kind
        folder.mkdir()
        test_several_resumes_in_one_pass_each_saved_at_once_go_on_exactly(kind, workers, folder)
