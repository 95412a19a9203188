"""B38: no dtype is ever cast to that of the target, and no shape or entry that differs goes unnoticed."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from segue import Checkpointer, GradientAccumulator, TrainableOnly, Training, base_identity
from segue.errors import BaseMismatch, ContractMismatch, EnvironmentWarning, OptimizerMismatch
from tests.cases.state import codes_of, everything, live, raw, stored


def copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


WEIGHT, COUNT = torch.tensor([1.0001, 2.0003]), torch.tensor([2**24 + 1])


class Entries(nn.Module):
    """A module of the given parameters and buffers, beside one that is trained."""

    def __init__(self, *, parameters=None, buffers=None, transient=None):
        super().__init__()
        self.trained = nn.Parameter(torch.tensor([3.0]))
        for name, value in (parameters or {}).items():
            trains = value.is_floating_point()
            self.register_parameter(name, nn.Parameter(value.clone(), requires_grad=trains))
        for name, value in (buffers or {}).items():
            self.register_buffer(name, copied(value))
        for name, value in (transient or {}).items():
            self.register_buffer(name, copied(value), persistent=False)


def training_of(model, **options):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = SGD(trained, lr=0.1, momentum=0.9, foreach=False)
    return optimizer, Training(model, optimizer, **options)


def reported():
    return Entries(parameters={"w": WEIGHT}, buffers={"n": COUNT})


TARGETS = {
    "a parameter in bf16": (
        lambda: Entries(parameters={"w": WEIGHT.bfloat16()}, buffers={"n": COUNT}), ["model.dtype.w"], False,
    ),
    "a count in fp32": (
        lambda: Entries(parameters={"w": WEIGHT}, buffers={"n": COUNT.float()}), ["model.dtype.n"], False,
    ),
    "both": (
        lambda: Entries(parameters={"w": WEIGHT.bfloat16()}, buffers={"n": COUNT.float()}),
        ["model.dtype.n", "model.dtype.w"], False,
    ),
    "a parameter of another shape": (
        lambda: Entries(parameters={"w": torch.zeros(3)}, buffers={"n": COUNT}), ["model.shape.w"], False,
    ),
    "a parameter with a dimension more": (
        lambda: Entries(parameters={"w": WEIGHT[None]}, buffers={"n": COUNT}), ["model.shape.w"], False,
    ),
    "a count of another shape, that one would broadcast to": (
        lambda: Entries(parameters={"w": WEIGHT}, buffers={"n": torch.zeros(4, dtype=torch.int64)}), ["model.shape.n"], False,
    ),
    "a count without dimensions": (
        lambda: Entries(parameters={"w": WEIGHT}, buffers={"n": COUNT[0]}), ["model.shape.n"], False,
    ),
    "another dtype and another shape": (
        lambda: Entries(parameters={"w": torch.zeros(3, dtype=torch.float64)}, buffers={"n": COUNT}),
        ["model.shape.w", "model.dtype.w"], False,
    ),
    "no count": (lambda: Entries(parameters={"w": WEIGHT}), ["model.missing.n"], True),
    "no parameter": (lambda: Entries(buffers={"n": COUNT}), ["model.missing.w"], True),
    "a parameter more": (
        lambda: Entries(parameters={"w": WEIGHT, "more": WEIGHT}, buffers={"n": COUNT}), ["model.extra.more"], True,
    ),
    "a count more": (
        lambda: Entries(parameters={"w": WEIGHT}, buffers={"n": COUNT, "more": COUNT}), ["model.extra.more"], True,
    ),
    "a count more, that is not saved by torch": (
        lambda: Entries(parameters={"w": WEIGHT}, buffers={"n": COUNT}, transient={"more": COUNT}), ["model.extra.more"], True,
    ),
    "a count that is None": (
        lambda: Entries(parameters={"w": WEIGHT}, buffers={"n": None}), ["model.none.n"], False,
    ),
    "a buffer where a parameter was": (
        lambda: Entries(buffers={"w": WEIGHT, "n": COUNT}),
        ["model.kind.w", "model.requires_grad.w", "optimizer.optimizer.missing.w"], False,
    ),
    "a parameter where a buffer was": (
        lambda: Entries(parameters={"w": WEIGHT, "n": COUNT}), ["model.kind.n"], False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("url", [False, True], ids=["restore", "resume"])
def test_b38_another_dtype_shape_or_entry_is_refused_and_nothing_is_touched(kind, url, tmp_path):
    make, codes, admissible = TARGETS[kind]
    model = reported()
    _, training = training_of(model)
    with Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save({"step": 1})
    record = stored(training.capture({"step": 1}), tmp_path)
    target = make()
    optimizer, resumed = training_of(target)
    before = everything(target, optimizer)
    with Checkpointer(resumed, tmp_path / "run") as checkpointer:

        def restore(**options):
            return checkpointer.resume(**options) if url else resumed.restore(record, **options)

        with pytest.raises(ContractMismatch) as caught:
            restore()
        assert [finding.code for finding in caught.value.findings] == codes
        assert all(code in str(caught.value) for code in codes)
        assert everything(target, optimizer) == before
        if not admissible:
            with pytest.raises(ContractMismatch):
                restore(accept=codes)
            assert everything(target, optimizer) == before
            return
        assert restore(accept=codes) == {"step": 1}
    kept = {name: raw(tensor) for name, tensor in target.named_parameters()} | {
        name: raw(tensor) for name, tensor in target.named_buffers()
    }
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert kept.get(name, raw(tensor)) == raw(tensor)


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


def filled(dtype):
    """Values that are in every of these dtypes, so that a cast would go unnoticed by value."""
    return torch.tensor([1, 2, 3], dtype=dtype)


def as_component(dtype):
    return {"it": Entries(buffers={"n": filled(dtype)})}


PLACES = {
    "a parameter": (lambda dtype: (Entries(parameters={"w": filled(dtype)}), {}), "model.dtype.w"),
    "a buffer": (lambda dtype: (Entries(buffers={"w": filled(dtype)}), {}), "model.dtype.w"),
    "a buffer that torch does not save": (
        lambda dtype: (Entries(transient={"w": filled(dtype)}), {}), "model.dtype.w",
    ),
    "a buffer of a component": (
        lambda dtype: (Entries(), {"components": as_component(dtype)}), "component.it.dtype.n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "then",
    [pytest.param(d, marks=() if d in (torch.float32, torch.int64) else pytest.mark.exact) for d in DTYPES],
    ids=str,
)
@pytest.mark.parametrize("place", PLACES)
def test_b38_every_pair_of_dtypes_is_refused_and_each_goes_into_its_own(place, then, tmp_path):
    make, code = PLACES[place]
    model, options = make(then)
    optimizer, training = training_of(model, **options)
    record = stored(training.capture(), tmp_path)
    for now in DTYPES:
        target, options = make(now)
        component = options.get("components", {}).get("it", nn.Module())
        other, resumed = training_of(target, **options)
        before = everything(target, other), live(component)
        if now is then:
            resumed.restore(record)
            assert everything(target, other) == everything(model, optimizer)
            continue
        codes = codes_of(resumed, record)
        assert code in codes
        # A parameter of integers has no gradient: it is frozen, and no optimizer's.
        assert code in codes_of(resumed, record, accept=codes)
        assert (everything(target, other), live(component)) == before


@pytest.mark.parametrize("then", DTYPES, ids=str)
def test_b38_optimizer_state_comes_back_in_its_own_dtype_whatever_is_there(then, tmp_path):
    def begin(dtype):
        model = nn.Linear(3, 1, bias=False)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        training = Training(model, optimizer)
        optimizer.state[model.weight]["own"] = [filled(dtype), {"deep": filled(dtype)[:2]}]
        optimizer.state[model.weight]["flat"] = filled(dtype)
        if dtype.is_floating_point:
            optimizer.state[model.weight]["momentum_buffer"] = filled(dtype)[None]
        return model, optimizer, training

    model, optimizer, training = begin(then)
    record = stored(training.capture(), tmp_path)
    for now in DTYPES:
        target, other, resumed = begin(now)
        resumed.restore(record)
        assert raw(dict(other.state[target.weight])) == raw(dict(optimizer.state[model.weight]))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if not dtype.is_floating_point], ids=str)
def test_b38_a_history_of_integers_where_floats_belong_is_refused(dtype, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = Training(model, optimizer)
    optimizer.state[model.weight]["momentum_buffer"] = filled(dtype)[None]
    record = stored(training.capture(), tmp_path)
    target = nn.Linear(3, 1, bias=False)
    other = SGD(target.parameters(), lr=0.1, momentum=0.9)
    resumed = Training(target, other)
    before = everything(target, other)
    assert codes_of(resumed, record, OptimizerMismatch) == [
        "optimizer.optimizer.state.weight.momentum_buffer"
    ]
    assert everything(target, other) == before


FLOATS = DTYPES[:4]


def with_gradient(dtype):
    """One parameter of fp32 whose gradient may have another dtype."""
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    if dtype is not torch.float32:
        model.weight.grad_dtype = dtype
    return model, *training_of(model)


@pytest.mark.parametrize("then", FLOATS, ids=str)
def test_b38_pending_gradients_are_not_cast_either(then, tmp_path):
    model, optimizer, training = with_gradient(then)
    model.weight.grad = filled(then)[None]
    record = stored(training.capture(), tmp_path)
    for now in FLOATS:
        target, other, resumed = with_gradient(now)
        before = everything(target, other)
        if now is then:
            resumed.restore(record)
            assert everything(target, other) == everything(model, optimizer)
            continue
        codes = codes_of(resumed, record, ContractMismatch)
        assert "model.grad_dtype.weight" in codes
        codes_of(resumed, record, ContractMismatch, accept=codes)
        assert everything(target, other) == before


@pytest.mark.parametrize("then", [torch.float32, torch.float64], ids=str)
def test_b38_window_sums_are_not_cast_either(then, tmp_path):
    def begin(dtype):
        model = nn.Linear(3, 1, bias=False)
        window = GradientAccumulator(model, dtype)
        return model, window, *training_of(model, accumulator=window)

    def look(model, window, optimizer):
        return everything(model, optimizer), [raw(total) for _, total in window.sums()], window.window_state()

    model, window, optimizer, training = begin(then)
    model.weight.grad = filled(torch.float32)[None]
    window.add()
    record = stored(training.capture(), tmp_path)
    for now in (torch.float32, torch.float64):
        target, other_window, other, resumed = begin(now)
        before = look(target, other_window, other)
        if now is then:
            resumed.restore(record)
            assert look(target, other_window, other) == look(model, window, optimizer)
            continue
        codes = codes_of(resumed, record, ContractMismatch)
        assert all(code.startswith("window") for code in codes)
        codes_of(resumed, record, ContractMismatch, accept=codes)
        assert look(target, other_window, other) == before


def test_b38_a_buffer_that_the_run_replaced_by_one_of_another_dtype_is_so_again(tmp_path):
    model = reported()
    optimizer, training = training_of(model)
    model.n = model.n.to(torch.int32)
    record = stored(training.capture(), tmp_path)
    target = reported()
    other, resumed = training_of(target)
    resumed.restore(record)
    assert everything(target, other) == everything(model, optimizer)
    assert target.n.dtype is torch.int32
    # A program that builds it as neither is another program.
    edited = Entries(parameters={"w": WEIGHT}, buffers={"n": COUNT.float()})
    other, resumed = training_of(edited)
    before = everything(edited, other)
    assert codes_of(resumed, record, ContractMismatch) == ["model.dtype.n"]
    assert everything(edited, other) == before


def test_b38_another_default_dtype_builds_another_model(tmp_path):
    record = stored(training_of(nn.Linear(3, 2))[1].capture(), tmp_path)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = nn.Linear(3, 2)
        optimizer, training = training_of(model)
        before = everything(model, optimizer)
        with pytest.warns(EnvironmentWarning, match="default_dtype"):
            codes = codes_of(training, record, ContractMismatch)
        assert codes == ["model.dtype.bias", "model.dtype.weight"]
        assert everything(model, optimizer) == before
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("now", FLOATS, ids=str)
def test_b38_a_frozen_base_in_another_dtype_is_refused(now, tmp_path):
    def begin(dtype):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3).to(dtype), nn.Linear(3, 2))
        model[0].requires_grad_(False)
        return model, *training_of(model, model_state=TrainableOnly(base=base_identity(model)))

    model, optimizer, training = begin(torch.float32)
    record = stored(training.capture(), tmp_path)
    target, other, resumed = begin(now)
    before = everything(target, other)
    if now is torch.float32:
        resumed.restore(record)
        assert everything(target, other) == everything(model, optimizer)
        return
    codes = codes_of(resumed, record, BaseMismatch)
    codes_of(resumed, record, accept=codes)
    assert everything(target, other) == before


def test_b38_the_rate_s_type_and_dtype_are_a_request_too(tmp_path):
    def begin(lr):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = AdamW(model.parameters(), lr=lr, foreach=False)
        return model, optimizer, Training(model, optimizer)

    RATES = [1.0, torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64), torch.tensor([1.0])]
    for then in RATES:
        model, optimizer, training = begin(copied(then))
        record = stored(training.capture(), tmp_path)
        for now in RATES:
            target, other, resumed = begin(copied(now))
            before = everything(target, other)
            if now is then:
                resumed.restore(record)
                assert everything(target, other) == everything(model, optimizer)
                continue
            assert codes_of(resumed, record, OptimizerMismatch) == ["optimizer.optimizer.lr"]
            assert everything(target, other) == before
