"""The libraries take seconds to import, so only tests that run import them."""

import importlib
import importlib.util

import pytest


@pytest.fixture(scope="session")
def trainings():
    """The module of trainings, with the libraries imported."""
    for library in ("torchao", "bitsandbytes"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    return importlib.import_module("tests.quantized_state.trainings")


@pytest.fixture
def eager(trainings):
    """Let torchao's optimizers step without compiling, which takes half a minute."""
    import torch

    torch.compiler.set_stance("force_eager")
    yield trainings
    torch.compiler.set_stance("default")
