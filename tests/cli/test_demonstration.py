from segue.cli import demonstration
from segue.demo.kills import plan_kills
from segue.demo.settings import Role, RunSettings
from tests.demo.results import result


def code(segue, state_dicts):
    run = RunSettings(seed=1)
    losses = {Role.UNINTERRUPTED: [2.0, 1.0], Role.SEGUE: segue, Role.STATE_DICTS: state_dicts}
    results = {role: result(role, values) for role, values in losses.items()}
    return demonstration.verdict_code(demonstration.report_of(run, plan_kills(run), results, 1.0, None))


def test_segues_run_alone_decides():
    assert code([2.0, 1.0], [2.0, 1.5]) == 0
    assert code([2.0, 1.5], [2.0, 1.0]) == 1
