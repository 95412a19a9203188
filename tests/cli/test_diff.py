import math

from segue._record.diff import Difference, RecordDiff
from segue.cli.comparison import render_comparison, report_of
from segue.cli.plain import to_json
from segue.cli.terminal import stdout


def test_a_checkpoint_is_identical_to_itself(segue_command, run_path):
    path = run_path / "ckpt-000000003"
    outcome = segue_command("diff", path, path, "--json")
    assert (outcome.code, outcome.json["identical"], outcome.json["differences"]) == (0, True, [])
    assert "identical" in segue_command("diff", path, path).out


def test_two_boundaries_differ_with_exit_1_and_first_and_worst_are_named(segue_command, run_path):
    paths = (run_path / "ckpt-000000001", run_path / "ckpt-000000003")
    outcome = segue_command("diff", *paths, "--json")
    assert (outcome.code, outcome.err) == (1, "")
    report = outcome.json
    assert report["num_differences"] == len(report["differences"]) > 0
    assert report["first"] == report["differences"][0]
    assert report["worst"]["num_differing"] > 0
    assert report["worst"]["max_ulps"] > 0


def test_a_person_sees_the_first_the_worst_and_how_many_are_hidden(segue_command, run_path):
    out = segue_command("diff", run_path / "ckpt-000000001", run_path / "ckpt-000000003", "--limit", "2").out
    assert "first: model" in out
    assert "worst: " in out
    assert "ulps" in out
    assert "more; --limit shows more" in out


def test_differences_of_all_kinds_have_a_json_form_and_a_row(capsys):
    found = RecordDiff(
        (
            Difference("model", "tensors/[w]", "1.0", "nan", 4, 2, (1,), math.inf, None),
            Difference("caller_state", "step", "3", "absent"),
            Difference("model", "tensors/v", "strides (1,)", "strides (2,)", 4, 0),
        )
    )
    report = report_of(found, "a", "b")
    assert '"max_absolute": "inf"' in to_json(report)
    stdout().print(render_comparison(report, 20))
    out = capsys.readouterr().out
    assert "[w]" in out
    assert "3 | absent" in out


def test_a_damaged_side_exits_4(segue_command, own_run):
    path = own_run / "ckpt-000000003" / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    outcome = segue_command("diff", own_run / "ckpt-000000002", own_run / "ckpt-000000003")
    assert (outcome.code, outcome.out) == (4, "")
