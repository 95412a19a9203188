"""The claim: what modules keep outside of their parameters goes on exactly, from every cut and in a new process."""

import itertools
import json

import pytest

from tests.exactness import module_runs
from tests.exactness.matrix import property_of
from tests.exactness.module_programs import PROGRAMS
from tests.exactness.module_runs import cuts_of, outcome
from tests.exactness.processes import in_new_process

seeds = itertools.count(6000)


def test_every_program_goes_on_with_the_same_bits(tmp_path, record_property):
    names = tuple(PROGRAMS)
    assert in_new_process(module_runs.record, names, str(tmp_path)) == 0
    assert in_new_process(module_runs.go_on, names, str(tmp_path), next(seeds)) == 0
    rows = [
        {
            "class": name,
            "options": "",
            "dtype": "fp32",
            "cut": str(cut),
            "verdict": outcome(name, tmp_path, cut),
        }
        for name in names
        for cut in cuts_of(name)
    ]
    for row in rows:
        record_property(*property_of("modules", row))
    assert not [row for row in rows if row["verdict"] != "exact"]


@pytest.mark.parametrize("name", ["AnnealedDropout", "ExtraState", "Swa"])
def test_what_is_told_by_hand_moves(name, tmp_path):
    module_runs.record((name,), str(tmp_path))
    whole = json.loads((tmp_path / f"{name}-whole.json").read_text())
    assert len({json.dumps(found) for found in whole.values()}) == len(whole)


def test_a_difference_is_noticed(tmp_path):
    name = "AnnealedDropout"
    module_runs.record((name,), str(tmp_path))
    module_runs.go_on((name,), str(tmp_path), 1)
    place = tmp_path / f"{name}-3.json"
    rest = json.loads(place.read_text())
    rest["5"]["net more"] = "another"
    place.write_text(json.dumps(rest))
    assert outcome(name, tmp_path, 3) == "after 5: net more differ"
    assert outcome(name, tmp_path, 4) == "exact"
