import json

import pytest

from segue.demo.process import TrialFailed, last_words, run_to_end


def test_a_process_that_fails_is_told_with_its_last_words(tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text("no JSON")
    with pytest.raises(TrialFailed, match=r"segue\.demo\.base ended with 1:\n(.|\n)*JSONDecodeError"):
        run_to_end("segue.demo.base", settings)


def test_a_process_is_waited_for_and_told_its_settings(tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"a": 1}))
    run_to_end("json.tool", settings)


def test_of_a_process_that_wrote_many_lines_the_last_are_told(tmp_path):
    path = tmp_path / "stderr"
    assert last_words(path) == ""
    path.touch()
    assert last_words(path) == ""
    path.write_text("\n".join(str(line) for line in range(100)))
    assert last_words(path).splitlines()[:2] == [":", "85"]
