"""A small honest checkpoint to spoil."""

import shutil

import pytest

from segue._store.archive import write_checkpoint
from tests._store.records import record


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("honest") / "checkpoint"
    write_checkpoint(record(1), path)
    return path


@pytest.fixture
def checkpoint(honest, tmp_path):
    path = tmp_path / "checkpoint"
    shutil.copytree(honest, path)
    return path
