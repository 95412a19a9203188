import subprocess
import sys

import pytest

import segue

COMMANDS = ["demo", "inspect", "verify", "diff", "list"]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_its_json_shape_and_exit_codes(segue_command, command):
    outcome = segue_command(command, "--help")
    assert outcome.code == 0
    for told in ("--json", "JSON:", "Exit codes"):
        assert told in outcome.out


def test_help_lists_all_commands(segue_command):
    out = segue_command("--help").out
    assert all(command in out for command in COMMANDS)


def test_the_version_is_that_of_the_package(segue_command):
    assert segue_command("--version").out == f"segue {segue.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"], ["diff", "one"], ["nonsense"], ["list", "x", "--nonsense"], ["demo", "--microbatches", "8"],
        ["demo", "--microbatches", "161"], ["demo", "--text", "missing"], ["demo", "--seed", "-1"],
    ],
)  # fmt: skip
def test_wrong_usage_exits_2_and_says_so_on_stderr(segue_command, arguments):
    outcome = segue_command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err


def test_a_text_that_is_too_short_is_refused_before_training(segue_command, tmp_path):
    path = tmp_path / "short"
    path.write_text("too short")
    outcome = segue_command("demo", "--text", path, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "9 bytes" in outcome.err
    assert not (tmp_path / "out").exists()


def test_importing_segue_does_not_import_the_command_line():
    code = "import segue, sys; sys.exit(any(name in sys.modules for name in ('typer', 'rich', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_is_the_command_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "segue", "verify", str(tmp_path / "nothing")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5
    assert "no such" in done.stdout + done.stderr
