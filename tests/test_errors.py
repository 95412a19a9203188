"""The tree of errors, and that every message says what, where, expected, found, and what to do."""

import inspect

import pytest

from segue import errors
from segue.errors import (
    ABSENT,
    ContractMismatch,
    Finding,
    MismatchError,
    OptimizerMismatch,
    SegueError,
    shown,
)

TREE = {
    "CaptureError": ["ConcurrentMutation", "NotAtBoundary", "PendingGradientError", "TiedParameterConflict", "UnsupportedState"],
    "MismatchError": ["BaseMismatch", "ComponentMismatch", "ContractMismatch", "DeviceMismatch", "EnvironmentMismatch",
                      "LossyRecord", "OptimizerMismatch", "SchedulerMismatch", "TopologyMismatch"],
    "WindowError": [],
    "InvalidRecord": [],
    "StoreError": ["CheckpointExists", "CheckpointNotFound", "CorruptCheckpoint", "IncompleteCheckpoint", "RunLocked",
                   "StoreUnavailable", "UnsafeCheckpoint", "UnsupportedFormat"],
    "StoreUnavailable": ["StoreFull"],
    "SaveFailed": [],
    "RestoreInterrupted": [],
    "StaleIterator": [],
}  # fmt: skip
CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, SegueError)]


def children(cls):
    return sorted(child.__name__ for child in cls.__subclasses__() if child.__module__ == "segue.errors")


def test_the_tree_is_as_designed():
    assert children(SegueError) == sorted(TREE.keys() - {"StoreUnavailable"})
    assert {name: children(getattr(errors, name)) for name in TREE} == TREE
    assert len(CLASSES) == len(TREE) + sum(map(len, TREE.values()))


def test_all_are_ordinary_exceptions_and_warnings_are_warnings():
    assert SegueError.__bases__ == (Exception,)
    named = {cls.__name__ for cls in errors.SegueWarning.__subclasses__()}
    assert named == {
        "BaseWarning",
        "ConsumedGradientsWarning",
        "CounterWarning",
        "EnvironmentWarning",
        "ScheduleWarning",
        "SkippedCheckpointWarning",
        "StoreWarning",
        "UncoveredStateWarning",
    }
    assert issubclass(errors.SegueWarning, UserWarning)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_carries_its_fields(cls):
    error = cls("something", code="a.b", where="model w", expected=None, found=3, hint="do that")
    assert (error.code, error.what, error.where, error.hint) == ("a.b", "something", "model w", "do that")
    assert (error.expected, error.found, error.also) == (None, 3, ())
    assert str(error).splitlines() == [
        "something [a.b]", "  where:    model w", "  expected: None", "  found:    3", "  hint:     do that",
    ]  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_a_code_of_its_own_and_says_no_more_than_it_knows(cls):
    error = cls("something")
    assert str(error) == f"something [{error.code}]"
    assert error.code == error.code.lower()
    assert error.expected is error.found is ABSENT
    assert repr(ABSENT) == "absent"
    assert inspect.getdoc(cls)


def finding(code, *, error=ContractMismatch, hint=None, admissible=False):
    return Finding(error, code, "it differs", f"at {code}", 1, 2, hint, admissible)


def test_one_error_reports_all_findings_in_the_class_of_the_first():
    findings = [finding("a", error=OptimizerMismatch), finding("b"), finding("c")]
    error = MismatchError.of(findings)
    assert type(error) is OptimizerMismatch
    assert error.code == "a"
    assert error.findings == tuple(findings)
    assert error.also == tuple(findings[1:])
    assert str(error).count("it differs") == 3
    assert str(error).index("[b]") < str(error).index("[c]")


def test_what_can_be_admitted_prints_its_entry_beside_the_hint():
    plain, both = finding("a", admissible=True), finding("b", hint="or go back", admissible=True)
    assert 'resume(accept=["a"]) keeps what the program has now' in str(plain)
    assert 'or go back; resume(accept=["b"])' in str(both)
    assert "accept" not in str(finding("c", hint="go back"))
    assert 'accept=["a"]' in str(MismatchError.of([plain]))


def test_a_long_list_of_findings_is_cut_and_says_so():
    error = MismatchError.of([finding(f"code.{index:03}") for index in range(50)])
    assert str(error).endswith("- and 29 more")
    assert len(error.findings) == 50


VALUES = [("a\nb", "a\\nb"), ("\x1b[31m", "\\x1b[31m"), (["a\nb"], "['a\\\\nb']"), ("\ud800", "\\ud800"), (None, "None"),
          (10**5000, "a int with too many digits to show")]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), VALUES, ids=range(len(VALUES)))
def test_values_are_shown_on_one_line_without_control_characters(value, text):
    assert shown(value) == text


def test_values_are_shown_in_at_most_two_hundred_characters():
    assert len(shown("x" * 1000)) == 200
    assert shown("x" * 1000).endswith("...")
    assert shown("x" * 200) == "x" * 200
    message = str(SegueError("w", where="y" * 5000, found="z" * 5000))
    assert len(message) < 500


def test_what_came_from_data_cannot_forge_lines_of_a_message():
    text = str(SegueError("w", where="a\n  hint:     delete everything", found="b\r\nc"))
    assert len(text.splitlines()) == 3


def test_all_entries_that_would_admit_are_collected_in_one_line_to_paste():
    findings = [
        finding("a", admissible=True),
        finding("b", admissible=True),
        finding("a", admissible=True),
        finding("c"),
    ]
    text = str(MismatchError.of(findings))
    assert (
        text.splitlines()[-1]
        == '1 of the 4 differences can\'t be accepted; the rest: resume(accept=["a", "b"])'
    )
