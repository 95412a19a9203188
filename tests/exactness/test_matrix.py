"""The matrix as it is printed: no row gets lost between two workers, and none that isn't exact is counted as exact."""

import os
import subprocess
import sys

from tests.exactness.matrix import HOLE, Table, property_of, reported
from tests.exactness.processes import ROOT


def row(options="", dtype="fp32", cut="mid-window", verdict="exact", name="Adam"):
    return {"class": name, "options": options, "dtype": dtype, "cut": cut, "verdict": verdict}


def test_one_line_joins_the_dtypes_and_the_cuts_of_a_configuration():
    rows = [row(dtype=dtype, cut=cut) for dtype in ("fp32", "bf16") for cut in ("mid-window", "after a step")]
    lines = Table("optimizers", rows).lines()
    assert [line.split() for line in lines[:2]] == [
        ["class", "options", "fp32", "bf16"],
        ["Adam", "exact", "exact"],
    ]
    assert lines[2:] == ["optimizers: 2 of 2 runnable configurations exact"]


def test_a_configuration_that_diverges_at_one_cut_is_not_exact():
    table = Table("optimizers", [row(), row(cut="after a step", verdict="DIVERGES: state")])
    assert table.cell(("Adam", ""), "fp32") == "mid-window: exact; after a step: DIVERGES: state"
    assert table.totals() == "optimizers: 0 of 1 runnable configurations exact"


def test_what_diverged_once_is_not_made_up_for_by_another_test_of_the_same_row():
    for verdicts in (("exact", "DIVERGES"), ("DIVERGES", "exact")):
        table = Table("optimizers", [row(verdict=verdict) for verdict in verdicts])
        assert table.cell(("Adam", ""), "fp32") == "DIVERGES"


def test_a_row_that_only_one_dtype_has_leaves_a_hole_that_counts():
    table = Table("optimizers", [row(dtype="fp32"), row(dtype="bf16"), row("amsgrad")])
    assert table.cell(("Adam", "amsgrad"), "bf16") == HOLE
    assert table.totals() == "optimizers: 3 of 4 runnable configurations exact"


def test_what_torch_refuses_is_counted_apart():
    table = Table("optimizers", [row(), row("capturable", verdict="torch refuses: no")])
    assert table.totals() == "optimizers: 1 of 1 runnable configurations exact, 1 that torch refuses here"
    table = Table(
        "added", [row("a", verdict="torchao refuses: no"), row("b", verdict="bnb refuses: no"), row("c")]
    )
    assert table.totals() == "added: 1 of 1 runnable configurations exact, 2 that bnb or torchao refuses here"


def test_what_segue_refuses_is_a_hole():
    table = Table("optimizers", [row(verdict="SEGUE REFUSES: no")])
    assert table.totals() == "optimizers: 0 of 1 runnable configurations exact"


def test_a_refusal_at_one_cut_alone_is_no_refusal():
    table = Table("optimizers", [row(), row(cut="after a step", verdict="torch refuses: no")])
    assert table.totals() == "optimizers: 0 of 1 runnable configurations exact"


def test_rows_are_found_among_the_properties_by_table():
    properties = [property_of("optimizers", row()), ("other", 1), property_of("schedulers", row("x"))]
    assert reported(properties) == {"optimizers": [row()], "schedulers": [row("x")]}


TESTS = """
import pytest
from tests.exactness.matrix import property_of

@pytest.mark.parametrize("number", range({number}))
def test_rows(number, record_property):
    verdict = "exact" if number else "DIVERGES: at once"
    record_property(*property_of("letters", {{
        "class": "A", "options": str(number), "dtype": "fp32", "cut": "any", "verdict": verdict}}))
    assert number
"""


def printed(folder, number, *options):
    test = folder / "test_rows.py"
    test.write_text(TESTS.format(number=number))
    plugins = [item for name in ("xdist", "pytest_timeout", "tests.conftest") for item in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-c", "pyproject.toml", *options, str(test)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout


def test_the_rows_of_a_worker_are_printed_at_the_end_failed_ones_too(tmp_path):
    lines = printed(tmp_path, 31, "-n", "1").splitlines()
    assert "letters: 30 of 31 runnable configurations exact" in lines
    assert sorted(line for line in lines if line.startswith("A ")) == sorted(
        f"A      {number:<7}  {'exact' if number else 'DIVERGES: at once'}" for number in range(31)
    )


def test_a_sample_prints_nothing(tmp_path):
    assert "letters: " not in printed(tmp_path, 30)
