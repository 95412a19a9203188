"""Records are snapshots: of one process, as often as one likes, and nothing of theirs is anyone else's."""

import copy
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

import segue
from segue._record.digest import digests
from tests.exactness import live
from tests.exactness.memories import memories
from tests.exactness.trainings import MODES, WINDOW, Run, seed

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # of a run that stands beside

SOME = ("adam-amsgrad-tensor-lr", "autocast-fp16-scaler")
EVERY = [pytest.param(mode, marks=() if mode in SOME else pytest.mark.exact) for mode in MODES]


def begun(mode, num_microbatches=WINDOW + 2):
    seed(1)
    run = Run(MODES[mode])
    for number in range(num_microbatches):
        run.microbatch(number)
    return run


def train(run, first, last):
    return [run.microbatch(number) for number in range(first, last)]


def held_by(run):
    """Return what a run's live objects hold; the program's own settings and code aside, and what was only looked at."""
    return memories(
        run.net, run.ema, run.optimizers, run.schedulers, run.window, run.scaler, run.order, run.training,
        without=(run.mode, run.training._coverage),
    )  # fmt: skip


# --- one record, many times ---


@pytest.mark.parametrize("mode", EVERY)
def test_rolled_back_to_one_record_any_number_of_times_the_same_bits_follow(mode):
    run = begun(mode)
    record = run.training.capture({"at": 6})
    expected = train(run, 6, 12), live.digests(run)
    for number in (2, 5, 1):
        assert run.training.restore(record) == {"at": 6}
        seed(number)  # another future
        train(run, 6, 6 + number)
        run.training.restore(record)
        assert (train(run, 6, 12), live.digests(run)) == expected


@pytest.mark.parametrize("mode", EVERY)
def test_one_record_into_two_trainings_which_do_not_notice_each_other(mode):
    run = begun(mode)
    record = run.training.capture()
    train(run, 6, 12)
    expected = live.digests(run)
    seed(2)
    one, other = Run(MODES[mode]), Run(MODES[mode])
    streams = {}
    for each in (one, other):
        each.training.restore(record)
        streams[each] = all_streams()
    assert held_by(one).shared_with(held_by(other)) == []
    # In turns; the global streams are one for both, so each gets its own back for its turn.
    for number in range(6, 12):
        for each in (one, other):
            set_streams(streams[each])
            each.microbatch(number)
            streams[each] = all_streams()
    for each in (one, other):
        set_streams(streams[each])
        assert live.digests(each) == expected


def all_streams():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_streams(streams):
    python, numpy, of_torch = streams
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(of_torch)


@pytest.mark.parametrize("mode", EVERY)
def test_records_of_several_moments_come_back_in_any_order(mode):
    run = begun(mode, 0)
    records, seen = {}, {}
    for number in range(9):
        if number in (0, 3, 5, 8):
            records[number], seen[number] = run.training.capture({"at": number}), live.digests(run)
        run.microbatch(number)
    for order in itertools.permutations(records):
        for number in order:
            assert run.training.restore(records[number]) == {"at": number}
            assert live.digests(run) == seen[number]


def test_a_record_is_restored_while_it_is_being_saved(tmp_path):
    run = begun("adamw-foreach-fp32")
    with segue.Checkpointer(run.training, tmp_path / "run", background=True) as checkpointer:
        pending = checkpointer.save({"at": 6})
        record = run.training.capture({"at": 6})
        train(run, 6, 9)
        run.training.restore(record)
        train(run, 6, 9)
        pending.wait()
    assert segue.diff(segue.load(tmp_path / "run" / "ckpt-000000001"), record).identical


# --- nobody's memory but one's own ---


@pytest.mark.parametrize("mode", EVERY)
def test_records_and_live_objects_share_nothing_at_any_moment(mode, tmp_path):
    run = begun(mode)
    first = run.training.capture({"seen": [1], "array": np.arange(3), "tensor": torch.ones(3)})
    second = run.training.capture_async({"seen": [1]}).result()
    assert memories(first).shared_with(memories(second)) == []
    for record in (first, second):
        assert held_by(run).shared_with(memories(record)) == []
    segue.save(first, tmp_path / "saved")
    loaded = segue.load(tmp_path / "saved")
    for record in (first, loaded):
        run.training.restore(record)
        assert held_by(run).shared_with(memories(record)) == []
        train(run, 6, 7)
        assert held_by(run).shared_with(memories(record)) == []
    with segue.Checkpointer(run.training, tmp_path / "run", background=True) as checkpointer:
        checkpointer.save({"seen": [2]}).wait()
        newest = checkpointer.newest()
        run.training.restore(newest)
        assert held_by(run).shared_with(memories(newest)) == []


@pytest.mark.parametrize("mode", EVERY)
def test_a_caller_s_state_is_a_copy_each_time_it_is_asked_for(mode):
    run = begun(mode)
    state = {"seen": [1, {2}], "array": np.arange(3), "tensor": torch.ones(3), "bytes": bytearray(b"ab")}
    record = run.training.capture(state)
    parts = [state, record.state, record.state, run.training.restore(record)]
    for one, other in itertools.combinations([memories(part) for part in parts] + [memories(record)], 2):
        assert one.shared_with(other) == []


@pytest.mark.parametrize("mode", EVERY)
def test_what_is_written_to_live_objects_is_not_written_to_a_record(mode):
    run = begun(mode)
    state = {"seen": [1], "array": np.arange(3), "tensor": torch.ones(3)}
    record = run.training.capture(state)
    before = digests(record)
    state["seen"].append(2)
    state["array"][:], state["tensor"][:] = 9, 9
    spoil(run)
    assert digests(record) == before
    run.training.restore(record)
    assert digests(run.training.capture(record.state)) == before


def spoil(run):
    """Write to everything that can be written to in place."""
    with torch.no_grad():
        for module in (run.net, run.ema):
            for tensor in itertools.chain(module.parameters(), module.buffers()):
                fill(tensor)
                if tensor.grad is not None:
                    fill(tensor.grad)
        for optimizer in run.optimizers.values():
            spoil_tree(vars(optimizer))
        for scheduler in run.schedulers.values():
            spoil_tree({key: value for key, value in vars(scheduler).items() if key != "optimizer"})
        if run.window is not None:
            for _, total in run.window.sums():
                fill(total)


def fill(tensor):
    if tensor.numel() and not tensor.is_sparse:
        tensor.copy_(torch.full_like(tensor, 3))


def spoil_tree(value):
    for item in list(value.values() if isinstance(value, dict) else value):
        if isinstance(item, nn.Parameter):
            continue
        if isinstance(item, torch.Tensor):
            fill(item)
        elif isinstance(item, dict | list):
            spoil_tree(item)
    if isinstance(value, list) and value and all(isinstance(item, float) for item in value):
        value.append(5.0)


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), history_size=3, line_search_fn="strong_wolfe")


def rates_in_tensors(model):
    return torch.optim.Adam(
        model.parameters(), lr=torch.tensor(0.1), betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False
    )


def sparse(model):
    return torch.optim.SparseAdam(model.parameters())


def quantized(model):
    from tests.quantized_state.libraries import torchao

    return torchao.optim.AdamW8bit(model.parameters(), block_size=16)


def muon(model):
    return torch.optim.Muon(model.parameters(), lr=0.1)


def stepped(make, seed_number):
    torch.manual_seed(seed_number)
    model = nn.Embedding(64, 128, sparse=make is sparse)
    optimizer = make(model)
    training = segue.Training(model, optimizer)
    return model, optimizer, training


def step(model, optimizer, number):
    def closure():
        optimizer.zero_grad()
        loss = (model(torch.arange(number, number + 8)) - 1).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.fixture
def uncompiled():
    # torchao compiles its step by itself.
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("make", [lbfgs, rates_in_tensors, sparse, quantized, muon])
def test_optimizers_of_every_kind_share_nothing_with_their_records(make, tmp_path):
    model, optimizer, training = stepped(make, 0)
    for number in range(3):
        step(model, optimizer, number)
    record = training.capture()
    segue.save(record, tmp_path / "saved")
    again = training.capture()
    assert memories(record).shared_with(memories(again)) == []
    other_model, other, resumed = stepped(make, 1)
    for source in (record, segue.load(tmp_path / "saved"), record):
        resumed.restore(source)
        live_ones = memories(model, optimizer, training), memories(other_model, other, resumed)
        for one, two in itertools.combinations([*live_ones, memories(source)], 2):
            assert one.shared_with(two) == []
        before = digests(source)
        for number in range(3, 5):
            step(other_model, other, number)
        assert digests(source) == before
    step(model, optimizer, 3)
    step(model, optimizer, 4)
    assert segue.diff(training.capture(), resumed.capture()).identical


def test_what_is_accepted_is_each_record_s_own():
    model = nn.Linear(2, 2)
    training = segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    record = training.capture()
    other = nn.Linear(2, 2)
    resumed = segue.Training(other, torch.optim.SGD(other.parameters(), lr=0.2))
    resumed.restore(record, accept=["optimizer.optimizer.lr"])
    one, two = resumed.capture(), resumed.capture()
    one.lineage[0]["accepted"].append("spoilt")
    assert (
        two.lineage[0]["accepted"] == resumed.capture().lineage[0]["accepted"] == ["optimizer.optimizer.lr"]
    )


def test_copies_of_a_record_are_records():
    run = begun("adamw-foreach-fp32")
    record = run.training.capture({"at": 6})
    copied = copy.deepcopy(record)
    assert digests(copied) == digests(record)
    run.training.restore(copied)


def test_memories_notice_what_is_shared():
    base = torch.arange(10.0)
    one, other = {"a": base[:4]}, [base[6:]]
    assert memories(one).shared_with(memories(other)) != []  # one storage
    numbers = np.arange(10)
    assert memories(numbers[:6]).shared_with(memories(numbers[5:])) != []
    assert memories(numbers[:5]).shared_with(memories(numbers[5:])) == []
    inner = [1]
    assert memories({"x": (inner,)}).shared_with(memories([inner])) == [inner]
    assert memories(memoryview(bytearray(8))).shared_with(memories(torch.ones(2))) == []
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = base[:2]
    assert memories(parameter).shared_with(memories(base)) != []
