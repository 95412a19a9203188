import contextlib
import os
from pathlib import Path

import pytest

from segue.demo.process import TrialFailed
from segue.demo.settings import Kill, Role, RunSettings
from segue.demo.trial import fresh_directory, run_trial


def test_the_runs_of_an_earlier_demo_are_replaced(tmp_path):
    runs = fresh_directory(tmp_path)
    (runs / "old").touch()
    assert not (fresh_directory(tmp_path) / "old").exists()


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "precious").touch()
    with pytest.raises(TrialFailed, match="not made by the demo"):
        fresh_directory(tmp_path)
    assert (tmp_path / "runs" / "precious").exists()


def test_a_process_that_fails_is_reported_with_its_last_words_and_leaves_none_behind(tmp_path):
    run = RunSettings(text=os.fspath(tmp_path / "missing"))
    before = children()
    with pytest.raises(TrialFailed, match="FileNotFoundError"):
        run_trial(run, [Kill(8)], fresh_directory(tmp_path), lambda progress: None)
    assert children() <= before


def children():
    """The processes that this one has, zombies too; other tests keep a server of theirs."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            number, rest = stat.parent.name, stat.read_text().rpartition(")")[2]
            if int(rest.split()[1]) == os.getpid():
                found.add(number)
    return found


def test_the_folders_are_named_after_the_roles():
    assert [role.value for role in Role] == ["uninterrupted", "segue", "state-dicts"]
