"""A bf16 model in token-weighted windows: exact at every cut, and the gradient of all its tokens in one batch."""

import pytest
import torch
from torch import nn

from segue import WeightedAccumulator
from tests._window.models import bits
from tests.exactness.plans import Plan
from tests.exactness.processes import expect_end, forked
from tests.exactness.test_every_cut import cut
from tests.exactness.traces import assert_same
from tests.exactness.trainings import TOTAL

MODE = "bf16-token-windows"
UNIT = 2.0**-24
"""Half a unit in the last place of fp32: what one rounding may change, relatively."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    root = tmp_path_factory.mktemp("uninterrupted")
    plan = Plan(MODE, str(root), seed=7)
    expect_end(plan, forked(plan))
    return root


@pytest.mark.parametrize("boundary", range(1, TOTAL))
def test_cut_at_each_microbatch_a_new_process_ends_in_the_same_digest(boundary, uninterrupted, tmp_path):
    root = cut(uninterrupted, tmp_path, boundary)
    plan = Plan(MODE, str(root), seed=1000 + boundary)
    expect_end(plan, forked(plan))
    assert_same(uninterrupted, root, reaches=TOTAL)


LENGTHS = (3, 7, 1, 5)


class Whole(nn.Module):
    """Whole numbers everywhere, so small that bf16 holds every value and gradient of it exactly."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(11, 6, dtype=dtype)
        self.hidden = nn.Linear(6, 5, dtype=dtype)
        self.head = nn.Linear(5, 11, bias=False, dtype=dtype)
        for parameter in self.parameters():
            parameter.data = torch.randint(-1, 2, parameter.shape, generator=generator).to(dtype)

    def loss_sum(self, tokens, targets):
        """Minus the sum of the targets' scores: each token's gradient is a whole number."""
        scores = self.head(torch.relu(self.hidden(self.embedding(tokens))))
        return -scores.gather(1, targets[:, None]).sum().float().reshape(1)


def tokens_and_targets():
    generator = torch.Generator().manual_seed(1)
    size = sum(LENGTHS)
    return (torch.randint(0, 11, (size,), generator=generator) for _ in range(2))


def test_where_bf16_is_exact_a_window_is_one_batch_of_all_its_tokens_in_bits():
    # Whole numbers below 257 have a place in bf16, so no gradient is rounded before the sum, and none of the fp32
    # additions rounds either: the only roundings are the division and the cast, which one batch has as well.
    model, one_batch = Whole(), Whole()
    tokens, targets = tokens_and_targets()
    one_batch.loss_sum(tokens, targets).backward()
    window = WeightedAccumulator(model, microbatches=len(LENGTHS))
    for part, some_targets in zip(tokens.split(LENGTHS), targets.split(LENGTHS), strict=True):
        window.backward_sum(model.loss_sum(part, some_targets), torch.tensor([float(len(part))]))
    window.finish_mean()
    for (name, parameter), other in zip(model.named_parameters(), one_batch.parameters(), strict=True):
        assert 0 < other.grad.abs().max() <= 256, name
        assert (other.grad == other.grad.round()).all()
        expected = other.grad.float() / torch.tensor(float(sum(LENGTHS)))
        assert bits(parameter.grad) == bits(expected.to(torch.bfloat16)), name


def test_where_bf16_rounds_a_window_is_within_fp32_rounding_of_its_gradients_in_fp64():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 7)).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32  # or the cast to bf16 would hide the rounding of the sums
    window = WeightedAccumulator(model)
    sums, magnitudes = {}, {}
    for length in LENGTHS * 3:
        x, y = torch.randn(length, 9).to(torch.bfloat16), torch.randint(0, 7, (length,))
        nn.functional.cross_entropy(model(x).float(), y, reduction="sum").backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad.double()
            sums[name] = sums.get(name, 0) + gradient
            magnitudes[name] = magnitudes.get(name, 0) + gradient.abs()
        window.add_sum(length)
    window.finish_mean()
    num_tokens, num_microbatches = 3 * sum(LENGTHS), 3 * len(LENGTHS)
    # n terms are added with n - 1 roundings and divided with one, and the number of tokens is exact; so a term is
    # multiplied by at most (1 + u)^n, and their sum is off by at most ((1 + u)^n - 1) times the sum of magnitudes.
    bound = (1 + UNIT) ** num_microbatches - 1
    for name, parameter in model.named_parameters():
        error = (parameter.grad.double() - sums[name] / num_tokens).abs()
        assert (error <= bound * magnitudes[name] / num_tokens).all(), name
        assert error.max() > 0  # fp32 did round: the comparison is no formality
