import json
from dataclasses import dataclass
from typing import Any

import pytest

from segue.cli import main
from tests.cli.trainings import make_run


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def segue_command(capsys, monkeypatch):
    """Run the command in this process, on a wide terminal that is none."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def run_path(tmp_path_factory):
    """A run of three checkpoints; read only."""
    return make_run(tmp_path_factory.mktemp("cli") / "run")


@pytest.fixture
def own_run(tmp_path):
    """A run that a test may damage."""
    return make_run(tmp_path / "own")
