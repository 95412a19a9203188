"""What `segue demo --adapters` says of its three checks, and that any of them decides."""

from dataclasses import replace

import pytest
from rich.console import Console

from segue.cli import adaptation, demonstration
from segue.demo.evidence import BaseSearch, Evidence, Refusal
from segue.demo.kills import plan_kills
from segue.demo.settings import Role, RunSettings
from tests.demo.results import result

SEARCH = BaseSearch(
    num_checkpoint_bytes=2048, num_base_bytes=3 * 2**20, num_checkpoints=4, num_searched_bytes=8192,
    num_base_blocks=1234, num_base_blocks_found=0, found_in=(), num_adapter_blocks=7, num_adapter_blocks_found=7,
    num_adapter_tensors=2, names_missing=(), names_unexpected=(),
)  # fmt: skip
REFUSAL = Refusal(
    difference="bit 1 of byte 2 of weight", error="BaseMismatch", code="model.base",
    message="another base [model.base]\n  where:    weight", changed=(),
)  # fmt: skip


def report(search=SEARCH, refusal=REFUSAL, losses=(2.0, 1.0)):
    run = RunSettings(seed=1).with_adapter("base")
    results = {
        Role.UNINTERRUPTED: result(Role.UNINTERRUPTED, [2.0, 1.0]),
        Role.SEGUE: result(Role.SEGUE, losses),
    }
    trained = demonstration.report_of(run, plan_kills(run), results, 1.0, None)
    return adaptation.report_of(run, trained, Evidence(search, refusal))


def lines(value, capsys):
    Console(width=120).print(value)
    return capsys.readouterr().out.splitlines()


def test_three_checks_pass_with_their_evidence(capsys):
    found = report()
    assert adaptation.verdict_code(found) == 0
    assert [check["passed"] for check in found["checks"].values()] == [True, True, True]
    told = lines(adaptation.render_report(found), capsys)
    start = told.index("no byte of the base is in the checkpoint: 2.0 KiB beside a base of 3.0 MiB")
    assert told[start + 1 :] == [
        "  0 of the base's 1,234 64-byte blocks are in any of 4 checkpoints (8.0 KiB)",
        "  the same search finds the adapter's in the final one: 7 of 7",
        "  its model.safetensors holds the adapter's 2 tensors and nothing else",
        "another base is refused: bit 1 of byte 2 of weight is flipped",
        "  BaseMismatch: another base [model.base]",
        "    where:    weight",
        "  nothing of that training has changed",
        "identical: all 2 losses and every bit of the final training",
    ]


@pytest.mark.parametrize(
    ("failing", "check", "told"),
    [
        (
            {"search": replace(SEARCH, num_base_blocks_found=5, found_in=("a", "b", "c", "d"))},
            "base_is_absent",
            ["the checkpoint is not the adapter alone: ", "  5 of the base's ", ": a, b, c and 1 more"],
        ),
        (
            {"search": replace(SEARCH, num_adapter_blocks_found=6)},
            "base_is_absent",
            ["the checkpoint is not the adapter alone: ", "6 of 7"],
        ),
        (
            {"search": replace(SEARCH, names_missing=("up",), names_unexpected=("norm",))},
            "base_is_absent",
            ["the checkpoint is not the adapter alone: ", "model.safetensors lacks up, also holds norm"],
        ),
        (
            {"refusal": replace(REFUSAL, error=None, code=None, message="", changed=("model",))},
            "other_base_is_refused",
            ["another base is not refused as it must be: bit 1 ", "  the checkpoint was restored over it"],
        ),
        (
            {"refusal": replace(REFUSAL, changed=("model",))},
            "other_base_is_refused",
            ["another base is not refused as it must be: bit 1 ", "  changed all the same: model"],
        ),
        (
            {"refusal": replace(REFUSAL, error="ContractMismatch")},
            "other_base_is_refused",
            ["another base is not refused as it must be: bit 1 ", "  ContractMismatch: another base"],
        ),
        ({"losses": (2.0, 1.5)}, "identical", ["different: 1 losses"]),
    ],
)  # fmt: skip
def test_one_check_that_fails_decides_and_says_why(failing, check, told, capsys):
    found = report(**failing)
    assert adaptation.verdict_code(found) == 1
    assert [name for name, each in found["checks"].items() if not each["passed"]] == [check]
    printed = "\n".join(lines(adaptation.render_report(found), capsys))
    assert all(part in printed for part in told)
