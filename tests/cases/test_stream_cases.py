"""B39: dropout, Python and NumPy draws go on where they were, in a process that was seeded otherwise."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from segue import Training
from segue.errors import ComponentMismatch
from tests.cases import children


def test_b39_all_three_streams_go_on_in_another_process(tmp_path):
    live = children.run("noisy", tmp_path / "record", "save")
    assert children.run("noisy", tmp_path / "record", "resume") == live


def training(streams=True, **components):
    model = nn.Linear(1, 1)
    options = {} if streams else {"rng": None}
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), components=components, **options)


def test_b39_a_program_that_opted_out_leaves_the_streams_alone():
    record, resumed = training(streams=False).capture(), training(streams=False)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    resumed.restore(record)
    assert (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == before


def test_b39_streams_on_one_side_only_are_refused():
    for left, right in ((True, False), (False, True)):
        with pytest.raises(ComponentMismatch) as caught:
            training(streams=right).restore(training(streams=left).capture())
        assert caught.value.code == "streams"


def test_b39_a_component_named_rng_stands_in_for_the_streams_and_comes_last():
    class Own:
        def __init__(self):
            self.generator = torch.Generator().manual_seed(1)

        def state_dict(self):
            return {"generator": self.generator.get_state()}

        def load_state_dict(self, state):
            self.generator.set_state(state["generator"])

    one, other = Own(), Own()
    torch.randn(1, generator=one.generator)
    record = training(rng=one).capture()
    assert record.streams is None
    resumed = training(rng=other)
    before = torch.get_rng_state().tolist()
    resumed.restore(record)
    assert torch.get_rng_state().tolist() == before
    assert (
        torch.randn(3, generator=other.generator).tolist() == torch.randn(3, generator=one.generator).tolist()
    )
