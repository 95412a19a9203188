"""However often a run is stopped and goes on with other ranks, its samples are those of the run that never stopped."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch.utils.data import BatchSampler

from segue import ExactSampler


class Runs(RuleBasedStateMachine):
    """Ranks that fetch ahead of what they are given, stop at any moment, and are started again as many others.

    What they are given is written down as one list for each epoch, which `ExactSampler` must not know of.
    """

    @initialize(
        length=st.integers(0, 60),
        seed=st.integers(0, 2**64 - 1),
        shuffle=st.booleans(),
        global_batch_size=st.sampled_from([1, 4, 6, 12]),
        drop_last=st.booleans(),
    )
    def begin(self, length, seed, shuffle, global_batch_size, drop_last):
        self.length, self.global_batch_size = length, global_batch_size
        self.options = {"seed": seed, "shuffle": shuffle, "drop_last": drop_last}
        self.end = length // global_batch_size * global_batch_size if drop_last else length
        self.given: dict[int, list[int]] = {0: []}
        self.epoch = 0
        self.ranks: list[ExactSampler] = []
        self.start(1, None)

    def start(self, world_size, state):
        batch_size = self.global_batch_size // world_size
        self.ranks = [
            ExactSampler(self.length, batch_size=batch_size, rank=rank, world_size=world_size, **self.options)
            for rank in range(world_size)
        ]
        for sampler in self.ranks:
            if state is not None:
                sampler.load_state_dict(state)
        self.iterate()

    def iterate(self):
        self.fetched = [iter(BatchSampler(sampler, sampler.batch_size, False)) for sampler in self.ranks]

    @rule(batches=st.integers(1, 4))
    def deliver(self, batches):
        for _ in range(batches):
            parts = [next(fetched, []) for fetched in self.fetched]
            step = [index for part in parts for index in part]
            left = self.end - len(self.given[self.epoch])
            assert len(step) == min(left, self.global_batch_size)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            self.given[self.epoch] += step
            for sampler in self.ranks:
                sampler.commit(len(step))

    @rule(ahead=st.integers(0, 5))
    def fetch_ahead_and_lose_it(self, ahead):
        for fetched in self.fetched:
            for _ in range(ahead):
                next(fetched, None)
        self.start(len(self.ranks), self.ranks[0].state_dict())

    @rule(world_size=st.sampled_from([1, 2, 3, 4, 6]), source=st.integers(0, 5))
    def go_on_with_others(self, world_size, source):
        if self.global_batch_size % world_size == 0:
            self.start(world_size, self.ranks[source % len(self.ranks)].state_dict())

    @rule(skipped=st.integers(1, 3))
    def next_epoch(self, skipped):
        self.epoch += skipped
        self.given[self.epoch] = []
        for sampler in self.ranks:
            sampler.set_epoch(self.epoch)
        self.iterate()

    @rule()
    def told_the_same_epoch_again(self):
        for sampler in self.ranks:
            sampler.set_epoch(self.epoch)
        self.iterate()

    @invariant()
    def samples_are_those_of_the_run_that_never_stopped(self):
        for epoch, given in self.given.items():
            uninterrupted = ExactSampler(
                self.length, batch_size=self.global_batch_size, rank=0, world_size=1, **self.options
            )
            uninterrupted.set_epoch(epoch)
            whole = list(uninterrupted)
            assert given == whole[: len(given)]
            assert len(whole) == self.end

    @invariant()
    def every_rank_says_the_same(self):
        states = [sampler.state_dict() for sampler in self.ranks]
        assert all(state == states[0] for state in states)
        assert (states[0]["epoch"], states[0]["committed"]) == (self.epoch, len(self.given[self.epoch]))


Runs.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None, database=None)
test_runs = Runs.TestCase
