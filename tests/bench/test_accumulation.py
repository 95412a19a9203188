"""The benchmark of windows measures what it says, also where it is small."""

import json

import pytest
import torch

from segue.bench import accumulation


def test_it_prints_a_row_for_each_case(capsys):
    assert accumulation.main(["--scale", "0.001", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [case.name for case in accumulation.cases(1)]
    assert [
        next((name for name in names if line.startswith(name + " ")), None) for line in lines[1:8]
    ] == names


def test_its_json_has_every_field(capsys):
    threads = torch.get_num_threads()
    accumulation.main(["--scale", "0.0005", "--rounds", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [item["case"] for item in found] == [case.name for case in accumulation.cases(1)]
    assert all(item["add_ratio"] > 0 and item["num_parameters"] > 0 for item in found)
    assert torch.get_num_threads() == threads


def test_allocations_are_counted_though_they_are_freed_again():
    assert accumulation.allocated_by(lambda: torch.empty(1000)) == 4000
    assert accumulation.allocated_by(lambda: None) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_after_the_first_window_nothing_is_allocated_that_grows_with_the_model(dtype, weight):
    allocated = set()
    for size in (100, 100_000):
        bench = accumulation.Bench(accumulation.Case("", ((size,), (size, 2)), dtype, weight))
        bench.window_bytes()
        allocated.add(bench.window_bytes())
    [num_bytes] = allocated
    assert num_bytes < 1000
