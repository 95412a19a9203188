import pytest

from segue import errors
from segue.cli.exit_codes import ExitCode, exit_code

EXPECTED = {
    "MismatchError": 3, "ContractMismatch": 3, "OptimizerMismatch": 3, "SchedulerMismatch": 3, "ComponentMismatch": 3,
    "DeviceMismatch": 3, "TopologyMismatch": 3, "BaseMismatch": 3, "LossyRecord": 3, "EnvironmentMismatch": 3,
    "CorruptCheckpoint": 4, "UnsafeCheckpoint": 4, "UnsupportedFormat": 4, "InvalidRecord": 4,
    "IncompleteCheckpoint": 5, "CheckpointNotFound": 5,
    "StoreUnavailable": 6, "StoreFull": 6, "RunLocked": 6, "SaveFailed": 6, "RestoreInterrupted": 6,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_code_is_that_of_the_design(name):
    assert exit_code(getattr(errors, name)("what")) == EXPECTED[name]


def test_no_error_exits_as_fine_or_as_a_difference():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.SegueError)
    ]
    assert len(kinds) > 25
    assert not {exit_code(kind("what")) for kind in kinds} & {ExitCode.FINE, ExitCode.DIFFERS}
