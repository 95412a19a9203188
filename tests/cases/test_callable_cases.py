"""B21 and B22: functions that decide a schedule, resumed in a new process."""

import pytest

from tests.cases.schedule_runs import in_two_processes


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return in_two_processes("tests.cases.callable_programs", tmp_path_factory.mktemp("callables"))


def rate(outcome):
    """The first learning rate after the stop."""
    return outcome["seen"][0][0][0][0]


@pytest.mark.parametrize(
    ("name", "what"), [("closure", 'closed-over box["cap"]'), ("script", 'global BOX["cap"]')]
)
def test_b21_a_function_whose_state_moved_is_refused_when_it_is_saved(found, name, what):
    outcome = found[name]
    assert outcome["refused"] == ["capture.changed_function"]
    assert f"{what}: 1.0 -> 0.05" in outcome["text"]
    variable = what.split()[-1].split("[")[0]
    assert f'components={{"{variable}": segue.StateOf({variable}, "cap")}}' in outcome["text"]
    assert "use an object with `__call__`" in outcome["text"]
    assert outcome["unchanged"]


@pytest.mark.parametrize("name", ["closure-registered/registered", "script-registered/registered"])
def test_b21_registered_the_state_of_a_function_goes_on_where_it_was(found, name):
    before = found[name.split("/")[0]]
    assert rate(before) == "0.05"  # the cap that was lowered, not that of the program
    assert found[name] == {"seen": before["seen"]}
    assert before["unchanged"]


@pytest.mark.parametrize(
    "name", ["closure-unmoved/same", "script-unmoved/same", "object/same", "script-unmoved/elsewhere"]
)
def test_b21_what_has_not_moved_or_is_an_object_goes_on_where_it_was(found, name):
    assert found[name]["seen"] == found[name.split("/")[0]]["seen"]


REFUSED = {
    "closure-unmoved/lowered": (["lr_lambdas"], 'closed-over box["cap"]: 1.0 -> 0.05'),
    "closure-registered/not": (["lr_lambdas"], 'closed-over box["cap"]: registered -> 1.0'),
    "function/another": (["lr_lambdas"], "its code"),
    "script-unmoved/warmup": (["lr_lambdas"], "global args.warmup: 4 -> 8"),
    "script-unmoved/cap": (["lr_lambdas"], 'global BOX["cap"]: 1.0 -> 0.5'),
    "cyclic/gamma": (["gamma"], "expected: 0.9"),
    "scaled/another": (["_scale_fn_custom"], "closed-over share: 0.5 -> 0.25"),
    "scaled/none": (["mode", "_scale_fn_custom", "scale_mode"], "a function differs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_b21_b22_another_function_or_configuration_is_refused_and_nothing_has_changed(found, name):
    keys, text = REFUSED[name]
    outcome = found[name]
    codes = [f"scheduler.scheduler.{key}" for key in keys]
    assert sorted(code for code in outcome["refused"] if code.startswith("scheduler")) == sorted(codes)
    assert text in outcome["text"]
    assert outcome["unchanged"]


def test_b21_an_accepted_function_is_that_of_the_program(found):
    outcome = found["function/accepted"]
    assert [step[0][0][0] for step in outcome["seen"][:3]] == [repr(0.5**4), repr(0.5**5), repr(0.5**6)]


@pytest.mark.parametrize("name", ["cyclic/same", "scaled/same"])
def test_b22_the_function_that_scales_a_cycle_goes_on(found, name):
    assert found[name]["seen"] == found[name.split("/")[0]]["seen"]


def test_b22_an_optimizer_that_cannot_be_pickled_is_none_of_the_schedulers_state(found):
    assert found["unpicklable"]["unchanged"]
    assert found["unpicklable/same"]["seen"] == found["unpicklable"]["seen"]
