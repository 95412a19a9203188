"""The form of the seeds, end to end: cut at every microbatch of a window, restored in a new process, bit-equal ever after."""

import json

import pytest

from tests.exactness.callers_own import WINDOW, begin, resume
from tests.exactness.processes import in_new_process

FIRST = WINDOW + 1
CUTS = list(range(FIRST, FIRST + WINDOW))
END = 6 * WINDOW


@pytest.mark.parametrize("kind", ["grad", "plain", "weighted"])
def test_behaviours_35_and_36_every_cut_of_a_window_resumes_in_a_new_process_to_the_same_bits(kind, tmp_path):
    assert in_new_process(begin, kind, CUTS, END, str(tmp_path)) == 0
    whole = json.loads((tmp_path / "whole.json").read_text())
    assert (END - CUTS[-1]) // WINDOW >= 3
    for cut in CUTS:
        assert in_new_process(resume, kind, cut, END, str(tmp_path)) == 0
        assert json.loads((tmp_path / f"resumed-{cut}.json").read_text()) == whole, cut


def test_the_digest_notices_another_beginning(tmp_path):
    assert in_new_process(begin, "plain", [5], END, str(tmp_path)) == 0
    assert in_new_process(resume, "plain", 5, END - WINDOW, str(tmp_path)) == 0
    assert (tmp_path / "resumed-5.json").read_text() != (tmp_path / "whole.json").read_text()
