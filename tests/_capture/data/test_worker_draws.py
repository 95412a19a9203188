"""What workers draw is told at the first save, unless a resume would draw the same."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from segue.errors import UncoveredStateWarning, UnsupportedState

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")


def nothing():
    return 0.0


def by_torch():
    return torch.rand(()).item()


def by_numpy():
    return float(np.random.rand())


class Samples(Dataset):
    def __init__(self, draw=nothing, length=24):
        self.draw, self.length = draw, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index + self.draw()


class OwnGenerator(Samples):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def __getitem__(self, index):
        if isinstance(self.generator, torch.Generator):
            return index + torch.rand((), generator=self.generator).item()
        return index + float(self.generator.random())


class SeededAnew(OwnGenerator):
    def __getitem__(self, index):
        self.generator.manual_seed(index)
        return super().__getitem__(index)


class SeededByHand(Samples):
    def __getitem__(self, index):
        torch.manual_seed(index)
        return index + torch.rand(()).item()


def drawing_collate(samples):
    return torch.tensor([sample + random.random() for sample in samples])


def plain(dataset, **options):
    return DataLoader(dataset, 2, sampler=segue.ExactSampler(dataset, batch_size=2), num_workers=1, **options)


def stateful(dataset, **options):
    return StatefulDataLoader(dataset, 2, shuffle=True, num_workers=1, **options)


def saved(loader, *, strict=False, batches=6, **options):
    """Save after some batches; return what was told."""
    data = segue.DataPosition(loader, **options)
    model = nn.Linear(2, 2)
    training = segue.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), components={"data": data}, strict=strict
    )
    passes = iter(data)
    for _ in range(batches):
        next(passes)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            training.capture({"n": 1})
    finally:
        passes = data = training = None
    return [str(each.message) for each in caught if each.category is UncoveredStateWarning]


@pytest.mark.parametrize("made", [plain, stateful])
@pytest.mark.parametrize(
    ("draw", "stream"), [(by_torch, "torch"), (random.random, "python"), (by_numpy, "numpy")]
)
def test_a_draw_in_a_worker_is_told_by_its_stream(made, draw, stream):
    [told] = saved(made(Samples(draw)))
    assert "component.data.workers" in told
    assert f"({stream})" in told
    assert "segue.SeededSamples" in told


@pytest.mark.parametrize("made", [plain, stateful])
@pytest.mark.parametrize(
    "generator",
    [random.Random(3), np.random.default_rng(3), torch.Generator().manual_seed(3)],
    ids=lambda generator: type(generator).__name__,
)
def test_a_generator_of_the_dataset_s_own_is_told_since_the_worker_has_a_copy(made, generator):
    [told] = saved(made(OwnGenerator(generator)))
    assert "(generators of the dataset)" in told


def test_what_a_collate_function_draws_is_told_too():
    [told] = saved(plain(segue.SeededSamples(Samples(by_torch)), collate_fn=drawing_collate))
    assert "(python)" in told
    assert "replay=True" in told


def test_a_strict_training_refuses():
    with pytest.raises(UnsupportedState, match=r"component\.data\.workers"):
        saved(plain(Samples(by_torch)), strict=True)


@pytest.mark.parametrize("made", [plain, stateful])
@pytest.mark.parametrize(
    "dataset",
    [
        Samples(),
        segue.SeededSamples(Samples(by_torch)),
        segue.SeededSamples(Samples(by_numpy)),
        SeededByHand(),
        SeededAnew(torch.Generator()),
    ],
    ids=["no draws", "seeded, torch", "seeded, numpy", "seeded by hand", "a generator seeded anew"],
)
def test_workers_that_draw_nothing_that_is_lost_are_not_told(made, dataset):
    assert saved(made(dataset)) == []


def test_passes_that_are_run_again_draw_again():
    assert saved(stateful(Samples(by_torch)), replay=True) == []


def test_what_the_training_s_own_process_draws_is_restored():
    dataset = Samples(by_torch)
    loader = DataLoader(dataset, 2, sampler=segue.ExactSampler(dataset, batch_size=2))
    assert saved(loader) == []


def test_the_loader_has_its_own_collate_function_again():
    loader = stateful(Samples(by_torch), collate_fn=drawing_collate)
    saved(loader)
    assert loader.collate_fn is drawing_collate


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.exact)])
def test_living_workers_of_every_start_are_looked_at(context):
    loader = stateful(Samples(by_torch), persistent_workers=True, multiprocessing_context=context)
    [told] = saved(loader)
    assert "(torch)" in told
    loader._iterator = None
