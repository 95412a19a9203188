"""Random generators of the program's own: every kind, every place, what is refused, and what differs."""

import functools
import pathlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import segue
from segue import StateOf, Training
from segue._capture.generators import kind_of_generator
from segue._record.digest import digests
from segue._record.tree import same
from segue.errors import ComponentMismatch, InvalidRecord, MismatchError, UnsupportedState
from tests._store.records import tensor

BITS = (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)


class Dice(random.Random):
    """Python's own generator, with more methods."""

    def roll(self):
        return self.randrange(6)


class Own(random.Random):
    """Draws from a state of its own."""

    def random(self):
        return 0.5


def draw_torch(generator):
    return torch.randn(3, generator=generator).tolist(), torch.randperm(9, generator=generator).tolist()


def draw_python(generator):
    return generator.gauss(0, 1), generator.random(), generator.getrandbits(200)


def draw_numpy(generator):
    narrow = generator.integers(0, 100, 3, dtype=np.uint32).tolist()  # keeps half a word pending
    return narrow, generator.normal(), generator.spawn(1)[0].random()


def draw_legacy(generator):
    return generator.normal(), generator.random_sample()


def draw_seeds(seeds):
    return seeds.spawn(1)[0].generate_state(2).tolist()


# Each kind: how one is made from a seed, and how it is drawn from. An odd number of Gaussians leaves one pending.
KINDS = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), draw_torch),
    "python": (random.Random, draw_python),
    "subclass of python's": (Dice, draw_python),
    "numpy": (np.random.default_rng, draw_numpy),
    **{cls.__name__: (lambda seed, cls=cls: np.random.Generator(cls(seed)), draw_numpy) for cls in BITS},
    "bit generator": (np.random.PCG64, lambda bits: (bits.random_raw(), bits.spawn(1)[0].random_raw())),
    "legacy numpy": (np.random.RandomState, draw_legacy),
    "legacy over PCG64": (lambda seed: np.random.RandomState(np.random.PCG64(seed)), draw_legacy),
    "seed sequence": (np.random.SeedSequence, draw_seeds),
    "long seed sequence": (lambda seed: np.random.SeedSequence([seed, 2**200], spawn_key=(seed,), pool_size=8), draw_seeds),
}  # fmt: skip


class Component:
    """Saves nothing of itself."""

    def __init__(self, **held):
        vars(self).update(held)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def training(component=None, **held):
    model = nn.Linear(2, 1)
    components = {"aug": Component(**held) if component is None else component}
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), components=components)


def through_bytes(record):
    return segue.from_bytes(segue.to_bytes(record))


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_of_each_kind_goes_on_where_it_was(kind):
    make, draw = KINDS[kind]
    one, other = make(1), make(2)
    draw(one)
    record = through_bytes(training(rng=one).capture())
    assert list(record.private_streams) == ["component.aug.rng"]
    expected = [draw(one) for _ in range(3)]
    resumed = training(rng=other)
    resumed.check(record)
    resumed.restore(record)
    assert same(resumed.capture().private_streams, record.private_streams)
    assert [draw(other) for _ in range(3)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_capture_check_and_a_refused_restore_move_no_generator(kind):
    make, draw = KINDS[kind]
    alone, captured, refused = make(1), make(1), make(1)
    live, record = training(rng=captured), training(rng=make(2), more=random.Random(1)).capture()
    live.capture()
    with pytest.raises(MismatchError):
        training(rng=refused).restore(record)
    assert draw(captured) == draw(alone) == draw(refused)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_does_not_follow_a_generator(kind):
    make, draw = KINDS[kind]
    generator = make(1)
    record, again = (training(rng=generator).capture().private_streams for _ in range(2))
    draw(generator)
    assert same(record, again)
    assert not same(record, training(rng=generator).capture().private_streams)


class SGD(torch.optim.SGD):
    """Rounds stochastically, say."""

    def __init__(self, parameters, generator):
        super().__init__(parameters, lr=0.1)
        self.generator = generator


class Factor:
    """A callable with state, and a generator beside it."""

    def __init__(self, generator):
        self.generator = generator
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1.0


def in_model(generator):
    model = nn.Sequential(nn.Linear(2, 1))
    model[0].noise = generator
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1)), "model.0.noise"


def in_wrapped_model(generator):
    model = nn.Sequential(nn.Linear(2, 1))
    model[0].noises = {"left": [generator]}
    return Training(
        nn.DataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)
    ), "model.0.noises['left'][0]"


def in_hook(generator):
    model = nn.Linear(2, 1)
    model.register_forward_hook(lambda *args: generator and None)
    return Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1)
    ), "model._forward_hooks[0].__closure__.generator"


def in_module_component(generator):
    model, ema = nn.Linear(2, 1), nn.Linear(2, 1)
    ema.noise = generator
    return Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), components={"ema": ema}
    ), "component.ema.noise"


def in_component(generator):
    return training(transforms=[None, Component(rng=generator)]), "component.aug.transforms[1].rng"


def in_optimizer(generator):
    model = nn.Linear(2, 1)
    return Training(model, SGD(model.parameters(), generator)), "optimizer.optimizer.generator"


def in_foreign_optimizer(generator):
    model = nn.Linear(2, 1)
    foreign = Component(rng=generator, model=model, param_groups=[{"params": list(model.parameters())}])
    return Training(model, {"own": foreign}), "optimizer.own.rng"


def in_scheduler(generator):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, Factor(generator))
    return Training(model, optimizer, scheduler), "scheduler.scheduler.lr_lambdas[0].generator"


def in_schedulers_attribute(generator):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, Factor(None))
    scheduler.generator = generator
    return Training(model, optimizer, scheduler), "scheduler.scheduler.generator"


def in_function_of_a_schedule(generator):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1.0 if generator else 2.0)
    return Training(model, optimizer, scheduler), "scheduler.scheduler.lr_lambdas[0].__closure__.generator"


def in_state_of(generator):
    held = {"rng": generator, "calls": 3, "rngs": [generator]}
    return training(StateOf(held)), "component.aug['rng']"


def in_named_state_of(generator):
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), generator)
    return Training(
        model, optimizer, components={"own": StateOf(optimizer, "generator")}
    ), "optimizer.optimizer.generator"


def in_loader(generator):
    loader = torch.utils.data.DataLoader(range(4), shuffle=True, generator=generator)
    return training(loader=loader), "component.aug.loader.generator"


def in_data_position(generator):
    loader = torch.utils.data.DataLoader(
        segue.SeededSamples([1, 2, 3]), sampler=segue.ExactSampler(3, seed=1)
    )
    loader.generator = generator
    return training(segue.DataPosition(loader)), "component.aug.loader.generator"


PLACES = [
    in_model, in_wrapped_model, in_hook, in_module_component, in_component, in_optimizer, in_foreign_optimizer,
    in_scheduler, in_schedulers_attribute, in_function_of_a_schedule, in_state_of, in_named_state_of, in_loader,
    in_data_position,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_generator_at_each_place_is_one_stream_and_goes_on(place):
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    live, path = place(one)
    draw_torch(one)  # after it was bound
    record = through_bytes(live.capture())
    assert list(record.private_streams) == [path]
    expected = draw_torch(one)
    resumed = place(other)[0]
    resumed.check(record)
    resumed.restore(record)
    assert draw_torch(other) == expected


def test_global_streams_are_no_private_ones():
    record = training(
        a=torch.default_generator, b=random._inst, c=np.random.mtrand._rand, d=np.random.get_bit_generator(),
        e=np.random.Generator(np.random.get_bit_generator()), draw=random.random,
    ).capture()  # fmt: skip
    assert record.private_streams is None


def test_opting_out_of_the_global_streams_is_not_opting_out_of_private_ones():
    def made(generator):
        model = nn.Linear(2, 1)
        model.noise = generator
        return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), rng=None)

    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    record = made(one).capture()
    assert record.streams is None
    resumed = made(other)
    before = torch.get_rng_state()
    resumed.restore(record)
    assert draw_torch(one) == draw_torch(other)
    assert torch.equal(before, torch.get_rng_state())


def refused_capture(**held):
    with pytest.raises(UnsupportedState) as caught:
        training(**held).capture()
    assert caught.value.code == "capture.stream"
    return caught.value


@pytest.mark.parametrize("generator", [random.SystemRandom(), Own(1)], ids=["system", "own"])
def test_a_stream_that_nothing_can_restore_is_refused_at_capture(generator):
    error = refused_capture(transforms=[generator])
    assert error.where == "component.aug.transforms[0]"
    assert type(generator).__name__ in error.found
    assert "random.Random(seed)" in error.hint


def test_all_that_can_not_be_restored_are_named():
    error = refused_capture(a=random.SystemRandom(), b=random.SystemRandom())
    assert "component.aug.a" in error.found
    assert "component.aug.b" in error.found


def test_several_generators_in_a_set_are_refused_and_one_is_kept():
    assert "list" in refused_capture(rngs={random.Random(1), random.Random(2)}).hint
    assert list(training(rngs={random.Random(1), 3, "x"}).capture().private_streams) == [
        "component.aug.rngs{}"
    ]


def findings(record, live):
    with pytest.raises(MismatchError) as caught:
        live.restore(record)
    assert all(finding.error is ComponentMismatch for finding in caught.value.findings)
    return {finding.code: finding for finding in caught.value.findings}


def module_training(**held):
    model = nn.Sequential(nn.Linear(2, 1))
    vars(model[0]).update(held)
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_is_missing_or_new_is_a_finding_that_can_be_accepted():
    one, other = random.Random(1), random.Random(2)
    record, live = (
        module_training(gone=one, stays=random.Random(3)).capture(),
        module_training(new=other, stays=random.Random(4)),
    )
    before = other.getstate()
    codes = ["streams.private.model.0.gone", "streams.private.model.0.new"]
    found = findings(record, live)
    assert sorted(found) == codes
    assert all(finding.admissible for finding in found.values())
    live.restore(record, accept=codes)
    assert other.getstate() == before
    assert live.capture().lineage[0]["accepted"] == codes
    module_training(stays=random.Random(4)).restore(record, accept=["streams.private.model.*"])


def test_a_record_from_before_private_streams_is_refused_for_what_it_does_not_know():
    record = replace(module_training(noise=random.Random(1)).capture(), private_streams=None)
    live = module_training(noise=random.Random(2))
    [code] = findings(record, live)
    assert code == "streams.private.model.0.noise"
    live.restore(record, accept=[code])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (random.Random(1), torch.Generator()),
        (np.random.default_rng(1), np.random.RandomState(1)),
        (np.random.default_rng(1), np.random.Generator(np.random.Philox(1))),
        (np.random.RandomState(1), np.random.RandomState(np.random.PCG64(1))),
        (np.random.SeedSequence(1), random.Random(1)),
    ],
    ids=["python, torch", "numpy, legacy", "bit generators", "legacy bits", "seeds, python"],
)
def test_another_kind_of_generator_is_refused(one, other):
    record = module_training(rng=one).capture()
    [finding] = findings(record, module_training(rng=other)).values()
    assert (finding.code, finding.admissible) == ("streams.private.model.0.rng", False)


def test_one_generator_on_the_one_side_and_two_on_the_other_is_refused():
    one = random.Random(1)
    shared, apart = module_training(a=one, b=one), module_training(a=random.Random(1), b=random.Random(1))
    record = shared.capture()
    assert record.private_streams["model.0.a"]["aliases"] == ["model.0.b"]
    for before, live in ((shared, apart), (apart, shared)):
        state = one.getstate()
        [finding] = findings(before.capture(), live).values()
        assert (finding.code, finding.admissible) == ("streams.private.model.0.a", False)
        assert one.getstate() == state
    other = random.Random(2)
    module_training(a=other, b=other).restore(record)
    assert other.random() == one.random()


def test_an_alias_that_came_or_went_is_a_finding_of_its_own():
    one = random.Random(1)
    record = module_training(a=one, b=one).capture()
    [finding] = findings(record, module_training(a=random.Random(2))).values()
    assert (finding.code, finding.admissible) == ("streams.private.model.0.b", True)
    [finding] = findings(module_training(b=one).capture(), module_training(a=one, b=one)).values()
    assert finding.code == "streams.private.model.0.a"


GOOD = {
    kind: training(rng=make(1)).capture().private_streams["component.aug.rng"]
    for kind, (make, _) in KINDS.items()
}


def lies(kind):
    state = GOOD[kind]["state"]
    yield {}
    yield None
    yield []
    for key in state:
        yield {name: value for name, value in state.items() if name != key}
        for lie in (None, -1, 2**300, "text", 1.5, [], tensor("uint8", (7,)), {"key": 1}):
            # Which of these are a state: no Gaussian pending, or other counters.
            if not (
                key in ("gauss", "entropy")
                or (isinstance(lie, int | float) and isinstance(state[key], int | float))
            ):
                yield {**state, key: lie}
    yield {**state, "more": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_would_be_refused_is_a_finding_and_changes_nothing(kind):
    make, draw = KINDS[kind]
    live, alone = make(2), make(2)
    resumed = training(rng=live)
    record = training(rng=make(1)).capture()
    for lie in lies(kind):
        section = {"component.aug.rng": {**GOOD[kind], "state": lie}}
        with pytest.raises(ComponentMismatch) as caught:
            resumed.check(replace(record, private_streams=section))
        assert [item.code for item in caught.value.findings] == ["streams.private.component.aug.rng"], lie
    assert draw(live) == draw(alone)


@pytest.mark.parametrize(
    "section",
    [
        [], {}, "x", {3: GOOD["torch"]}, {"": GOOD["torch"]}, {"a": None}, {"a": {}}, {"a": {**GOOD["torch"], "kind": 3}},
        {"a": {**GOOD["torch"], "more": 1}}, {"a": {**GOOD["torch"], "aliases": "b"}},
        {"a": {**GOOD["torch"], "aliases": [3]}}, {"a": {**GOOD["torch"], "aliases": ["a"]}},
        {"a": {**GOOD["torch"], "aliases": ["b", "b"]}}, {"a": {**GOOD["torch"], "aliases": ["b"]}, "b": GOOD["torch"]},
    ],
    ids=lambda section: str(section)[:40].partition("state")[0],
)  # fmt: skip
def test_a_section_that_is_none_is_refused(section):
    record = training(rng=random.Random(1)).capture()
    with pytest.raises(InvalidRecord) as caught:
        replace(record, private_streams=section)
    assert caught.value.code == "record.streams"


def test_a_kind_that_nobody_knows_is_a_finding():
    record = training(rng=random.Random(1)).capture()
    section = {"component.aug.rng": {**GOOD["python"], "kind": "os.system"}}
    with pytest.raises(ComponentMismatch):
        training(rng=random.Random(1)).check(replace(record, private_streams=section))


def test_a_component_that_is_missing_is_told_once():
    record = training(rng=random.Random(1)).capture()
    model = nn.Linear(2, 1)
    live = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(findings(record, live)) == ["component.aug"]
    live.restore(record, accept=["component.aug"])
    assert list(findings(live.capture(), training(rng=random.Random(1)))) == ["component.aug"]


class Late(Component):
    """Makes its generator only as it is told its state."""

    def __init__(self, rng=None, fails=False):
        self.rng = rng
        self.fails = fails

    def state_dict(self):
        return {"has": self.rng is not None}

    def load_state_dict(self, state):
        self.rng = random.Random(99) if state["has"] else None
        if self.fails:
            raise ValueError("no")


def test_a_generator_that_is_made_by_another_restore_is_found_then():
    one = random.Random(1)
    record = training(Late(one)).capture()
    late = Late()
    training(late).restore(record)
    assert late.rng.random() == one.random()


def test_one_that_is_replaced_by_a_restore_gets_the_state():
    one, old = random.Random(1), random.Random(2)
    record = training(Late(one)).capture()
    late = Late(old)
    training(late).restore(record)
    assert late.rng is not old
    assert late.rng.random() == one.random()


def test_one_that_no_restore_made_is_refused_when_that_is_known_and_all_is_put_back():
    record = training(rng=random.Random(1), more=random.Random(2)).capture()
    stays = random.Random(3)
    live = training(more=stays)
    before = stays.getstate()
    live.check(record)  # a component may make it
    assert list(findings(record, live)) == ["streams.private.component.aug.rng"]
    assert stays.getstate() == before
    live.restore(record, accept=["streams.private.component.aug.rng"])
    assert live.capture().lineage[0]["accepted"] == ["streams.private.component.aug.rng"]
    assert stays.random() == random.Random(2).random()


class Drawing(Component):
    """Draws as it says and takes its state, and refuses in the end."""

    def __init__(self, rng, fails):
        self.rng = rng
        self.fails = fails

    def state_dict(self):
        self.rng.random()
        return {"a": 1}

    def load_state_dict(self, state):
        self.rng.random()
        if self.fails:
            self.fails = False
            raise ValueError("no")


def test_generators_are_put_back_when_a_component_refuses():
    rng = random.Random(1)
    record = training(Drawing(random.Random(5), False)).capture()
    live = training(Drawing(rng, True))
    before = rng.getstate()
    with pytest.raises(ComponentMismatch):
        live.restore(record)
    assert rng.getstate() == before


def test_a_private_stream_is_in_digests_in_the_difference_and_under_new_names(tmp_path):
    live = module_training(noise=random.Random(1))
    record = live.capture()
    live._live.model[0].noise.random()
    after = live.capture()
    assert [name for name in digests(record) if digests(record)[name] != digests(after)[name]] == [
        "private_streams"
    ]
    assert {item.section for item in segue.diff(record, after).differences} == {"private_streams"}
    assert segue.diff(record, after).differences[0].path.startswith("model.0.noise/")
    model = nn.ModuleDict({"inner": nn.Sequential(nn.Linear(2, 1))})
    vars(model["inner"][0])["noise"] = random.Random(7)
    renamed = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    renamed.restore(record, rename={"": "inner"})
    assert list(renamed.capture().private_streams) == ["model.inner.0.noise"]
    assert same(
        renamed.capture().private_streams["model.inner.0.noise"], record.private_streams["model.0.noise"]
    )


def test_no_conversion_touches_a_private_stream():
    record = training(**{f"rng{index}": make(1) for index, (make, _) in enumerate(KINDS.values())}).capture()
    for precision in ("half", "double"):
        assert same(record.converted(precision).private_streams, record.private_streams)


def test_an_optimizer_that_is_captured_alone_may_not_forget_its_generator():
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), torch.Generator())
    segue.capture_optimizer(optimizer, model)
    draw_torch(optimizer.generator)
    with pytest.raises(UnsupportedState) as caught:
        segue.capture_optimizer(optimizer, model)
    assert caught.value.code == "capture.hidden_state"


def test_a_generator_that_a_partial_or_a_path_holds_is_no_other_thing():
    assert kind_of_generator(functools.partial(min)) is None
    assert kind_of_generator(pathlib.Path()) is None
