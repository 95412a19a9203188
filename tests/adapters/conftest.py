"""The libraries take seconds to import, so only tests that run import them."""

import importlib
import importlib.util

import pytest


@pytest.fixture(scope="session")
def trainings():
    """The module of trainings, with the libraries imported."""
    for library in ("peft", "transformers", "torchao"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    return importlib.import_module("tests.adapters.trainings")
