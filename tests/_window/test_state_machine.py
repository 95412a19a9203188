"""Any sequence of calls, with any restarts, is the uninterrupted one in bits, and what fp64 says within rounding.

Three accumulators see the same microbatches. The first may be recorded, thrown away, restarted from its record or
loaded over at any moment; the second never is; the third is a plain sum in double precision, kept by hand.
"""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from segue import GradientAccumulator, WeightedAccumulator
from segue.errors import WindowError
from tests._window.models import bits

SIZE = 5
LOSS_SCALE = 3.0
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# The smallest positive numbers: what a result below the normal range may be off by.
TINY = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149, torch.float64: 5e-324}


class Net(nn.Module):
    """A plain, a tied, a sparse and an unused parameter."""

    def __init__(self, dtype):
        super().__init__()
        self.plain = nn.Parameter(torch.zeros(3, 2, dtype=dtype))
        self.rows = nn.Embedding(4, 2, sparse=True, dtype=dtype)
        self.unused = nn.Parameter(torch.zeros(2, dtype=dtype))
        self.tied = self.plain

    def give(self, values, rows):
        """Let gradients stand, as after a backward; `None` for none."""
        self.plain.grad = None
        if values is not None:
            self.plain.grad = torch.tensor(values, dtype=self.plain.grad_dtype).reshape(3, 2).clone()
        if rows is not None:
            ones = torch.arange(1.0, 2 * len(rows) + 1).reshape(-1, 2).to(self.plain.dtype)
            self.rows.weight.grad = torch.sparse_coo_tensor(
                torch.tensor([rows]), ones, (4, 2), check_invariants=True
            )


def seen(tensor):
    """A gradient or a sum in bits, with all that tells it from another."""
    if tensor is None:
        return None
    if tensor.is_sparse:
        return (
            "sparse",
            tensor.is_coalesced(),
            tensor._indices().tolist(),
            bits(tensor._values()),
            tensor.dtype,
        )
    return "dense", bits(tensor), tensor.stride(), tensor.dtype


class Side:
    """A model and its accumulator."""

    def __init__(self, machine):
        self.net = Net(machine.dtype)
        if machine.fp32_gradients:
            self.net.plain.grad_dtype = torch.float32
        size = SIZE if machine.is_sized else None
        if machine.is_weighted:
            self.window = WeightedAccumulator(self.net, machine.work, size, loss_scale=LOSS_SCALE)
        else:
            self.window = GradientAccumulator(self.net, machine.work, size)

    def look(self):
        names = {id(parameter): name for name, parameter in self.net.named_parameters()}
        sums = {names[id(parameter)]: seen(total) for parameter, total in self.window.sums()}
        gradients = [seen(parameter.grad) for parameter in self.net.parameters()]
        return self.window.window_state(), sums, gradients


class ByHand:
    """The window in double precision, with the sum of magnitudes that bounds what rounding may do."""

    def __init__(self):
        self.count, self.total = 0, 0.0
        self.sums, self.magnitudes, self.num_terms = {}, {}, {}

    def add(self, gradients, multiplier, weight):
        self.count += 1
        self.total += weight
        if weight == 0:
            return
        for name, gradient in gradients.items():
            term = gradient.detach().to(torch.float64)
            term = (term.to_dense() if term.is_sparse else term) * multiplier
            self.sums[name] = self.sums.get(name, 0) + term
            self.magnitudes[name] = self.magnitudes.get(name, 0) + term.abs()
            self.num_terms[name] = self.num_terms.get(name, 0) + (
                gradient._nnz() if gradient.is_sparse else 1
            )


values = st.lists(
    st.one_of(st.floats(-1000, 1000, width=16), st.sampled_from([0.0, -0.0, 1024.0, 0.125, 2.0**-14])),
    min_size=6, max_size=6,
)  # fmt: skip
maybe_values = st.one_of(st.none(), values)
maybe_rows = st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=4))
weights = st.sampled_from([0, -0.0, 1, 2, 5, 0.5, 37.25])
BAD_WEIGHTS = (-1.0, float("nan"), float("inf"), 1e39, 1e-46)


class Windows(RuleBasedStateMachine):
    @initialize(
        is_weighted=st.booleans(),
        work=st.sampled_from([torch.float32, torch.float64]),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
        fp32_gradients=st.booleans(),
        is_sized=st.booleans(),
    )
    def begin(self, is_weighted, work, dtype, fp32_gradients, is_sized):
        self.is_weighted, self.work, self.dtype = is_weighted, work, dtype
        self.fp32_gradients, self.is_sized = fp32_gradients, is_sized
        self.interrupted, self.uninterrupted, self.by_hand = Side(self), Side(self), ByHand()
        self.saved = None
        self.held = []

    @property
    def sides(self):
        return self.interrupted, self.uninterrupted

    def give(self, new_values, rows):
        for side in self.sides:
            side.net.give(new_values, rows)
        net = self.uninterrupted.net
        return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}

    def is_full(self):
        return self.is_sized and self.by_hand.count == SIZE

    @precondition(lambda self: not self.is_full())
    @rule(new_values=maybe_values, rows=maybe_rows, weight=weights, is_mean=st.booleans())
    def add(self, new_values, rows, weight, is_mean):
        gradients = self.give(new_values, rows)
        # The gradients of one side are held, so that they must be copied; those of the other become the sums.
        self.held += [(gradient, seen(gradient)) for gradient in gradients.values()]
        if self.is_weighted:
            self.by_hand.add(gradients, weight if is_mean else 1.0, weight)
        else:
            self.by_hand.add(gradients, 1.0, 1)
        for side in self.sides:
            self.add_one(side, weight, is_mean)

    @precondition(lambda self: self.is_weighted and not self.is_full())
    @rule(new_values=values, weight=weights)
    def backward_sum(self, new_values, weight):
        factors = torch.tensor(new_values, dtype=self.dtype).reshape(3, 2)
        losses = [(side.net.plain * factors).sum().reshape(1) for side in self.sides]
        done = [
            side.window.backward_sum(loss, torch.tensor([float(weight)]))
            for side, loss in zip(self.sides, losses, strict=True)
        ]
        assert done[0] == done[1]
        # The gradient that backward made, in the parameter's dtype, is what has been added.
        made = (factors * torch.tensor(LOSS_SCALE, dtype=self.dtype)).to(
            self.uninterrupted.net.plain.grad_dtype
        )
        self.by_hand.add({"plain": made}, 1.0, weight)

    @rule(
        new_values=values,
        bad=st.sampled_from(["weight", "graph", "frozen", "shape", "full"]),
        at=st.integers(0, 4),
    )
    def refused(self, new_values, bad, at):
        if (bad == "weight" and not self.is_weighted) or (bad == "full" and not self.is_full()):
            return
        self.give(new_values, [1])
        for side in self.sides:
            parameter = side.net.rows.weight
            gradient, shape = parameter.grad, parameter.data
            if bad == "graph":
                gradient.requires_grad_()
            elif bad == "frozen":
                parameter.requires_grad_(False)
            elif bad == "shape":
                parameter.data = shape.reshape(2, 4)
            before = side.look()
            with pytest.raises(WindowError):
                self.add_one(side, self.bad_weight(at) if bad == "weight" else 2.0)
            assert side.look() == before
            gradient.requires_grad_(False)
            parameter.requires_grad_(True)
            parameter.data = shape
            side.net.zero_grad()

    def add_one(self, side, weight, is_mean=True):
        if not self.is_weighted:
            side.window.add()
        elif is_mean:
            side.window.add_mean(weight)
        else:
            side.window.add_sum(weight)

    def bad_weight(self, at):
        # fp64 sums take what fp32 can't.
        return BAD_WEIGHTS[at % 3 if self.work is torch.float64 else at]

    @rule()
    def record(self):
        self.saved = (
            self.interrupted.window.to_record(),
            copy.deepcopy(self.by_hand),
            self.uninterrupted.look(),
        )

    @rule(is_fresh=st.booleans())
    def restart(self, is_fresh):
        """A new process goes on from a record made now; or this one loads it."""
        record = self.interrupted.window.to_record()
        if is_fresh:
            self.interrupted = Side(self)
        self.interrupted.window.load_record(record)

    @precondition(lambda self: self.saved is not None)
    @rule(is_fresh=st.booleans())
    def go_back(self, is_fresh):
        """Both begin again from an old record, which replaces whatever has been added since."""
        record, self.by_hand, expected = self.saved
        self.by_hand = copy.deepcopy(self.by_hand)
        for place, side in enumerate(self.sides):
            if is_fresh and place == 0:
                self.interrupted = side = Side(self)
            side.window.load_record(record)
            side.net.zero_grad()
            assert side.look()[:2] == expected[:2]

    @rule(is_mean=st.booleans())
    def finish(self, is_mean):
        is_empty = self.by_hand.total == 0
        if is_mean and is_empty:
            for side in self.sides:
                before = side.look()
                with pytest.raises(WindowError):
                    side.window.finish_mean()
                assert side.look() == before
            return
        for side in self.sides:
            side.window.finish_mean() if is_mean else side.window.finish_sums()
        assert self.interrupted.look() == self.uninterrupted.look()
        divisors = (
            ([LOSS_SCALE, self.by_hand.total] if self.is_weighted else [self.by_hand.total])
            if is_mean
            else []
        )
        for name, parameter in self.uninterrupted.net.named_parameters():
            self.compare(name, parameter.grad, divisors)
        for side in self.sides:
            side.net.zero_grad()
        self.by_hand = ByHand()

    def compare(self, name, gradient, divisors):
        assert (gradient is None) == (name not in self.by_hand.sums)
        if gradient is None:
            return
        expected, magnitude = self.by_hand.sums[name], self.by_hand.magnitudes[name]
        for divisor in divisors:
            expected, magnitude = expected / divisor, magnitude / divisor
        found = gradient.to(torch.float64)
        found = found.to_dense() if found.is_sparse else found
        # Each of n terms is rounded once as a product and once by each of the following additions, then by each of
        # the divisions: (1 + u)^k - 1 of its magnitude with k <= n + 2 + divisions, the weight and the divisors being
        # rounded to the work dtype too. One cast rounds the result; what is sparse is added up here after it, in
        # double precision, so each of its terms is rounded for itself.
        num_roundings = self.by_hand.num_terms[name] + 3 + 2 * len(divisors)
        in_work = num_roundings * UNIT[self.work] * 1.01 * magnitude + num_roundings * TINY[self.work]
        cast = UNIT[gradient.dtype] if gradient.dtype is not self.work else 0.0
        if gradient.dtype is torch.float16:
            in_range = magnitude < 60000
            found, expected, in_work, magnitude = (x[in_range] for x in (found, expected, in_work, magnitude))
        allowed = in_work + cast * (magnitude + in_work) + self.by_hand.num_terms[name] * TINY[gradient.dtype]
        assert ((found - expected).abs() <= allowed).all()

    @invariant()
    def both_are_one(self):
        if hasattr(self, "saved"):
            assert all(seen(gradient) == before for gradient, before in self.held)
            assert self.interrupted.look() == self.uninterrupted.look()
            state = self.uninterrupted.window.window_state()
            assert (state.microbatches, state.total_weight) == (self.by_hand.count, self.by_hand.total)
            names = {id(parameter): name for name, parameter in self.uninterrupted.net.named_parameters()}
            sums = {names[id(parameter)]: total for parameter, total in self.uninterrupted.window.sums()}
            for name in names.values():
                self.compare(name, sums.get(name), [])


Windows.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestWindows = Windows.TestCase
