"""Restore in the form of the seeds: the order of 2.2 and 2.4, seen by spies; what is refused, and what is left alone by then."""

import dataclasses

import pytest
import torch
from torch import nn

import segue
from segue._record.conversion import converted
from segue._record.gradients import GradientsRecord
from segue._record.quantized import QuantizedTensor, QuantScheme, QuantValue
from segue.errors import (
    ComponentMismatch,
    ContractMismatch,
    CorruptCheckpoint,
    DeviceMismatch,
    EnvironmentWarning,
    InvalidRecord,
    LossyRecord,
    MismatchError,
    OptimizerMismatch,
    SchedulerMismatch,
    UnsupportedFormat,
    UnsupportedState,
    WindowError,
)
from tests._session import shelf
from tests._session.callers import (
    CALLBACKS,
    Loop,
    Net,
    bits,
    everything,
    optimizers_of,
    restore_groups,
    restore_model,
    scheduler_of,
)
from tests._store.records import tensor
from tests.exactness.processes import in_new_process


def half_finished(**options):
    loop = Loop(**options)
    for index in range(2):
        loop.microbatch(index)
    loop.update()
    loop.microbatch(2)
    return loop


def weighted():
    return half_finished(
        make_window=segue.WeightedAccumulator, dtype=torch.float64, loss_scale=4.0, microbatches=2
    )


class Spy:
    """Restores as the caller does, and tells what was called, in order."""

    def __init__(self, change_model=None, change_after_groups=None):
        self.calls = []
        self.seen = {}
        self._change_model = change_model
        self._change_after_groups = change_after_groups

    def model(self, state, model):
        self.calls.append("model")
        self.seen["model_state"] = state
        segue.restore_module(state, model)
        if self._change_model is not None:
            self._change_model(model)
        self.seen["restored"] = model
        return model

    def groups(self, model, groups):
        self.calls.append("groups")
        self.seen["given"], self.seen["groups"] = model, groups
        model, optimizers = restore_groups(model, groups)
        if self._change_after_groups is not None:
            self._change_after_groups(model)
        self.seen["optimizers"] = optimizers
        return model, optimizers

    def scheduler(self, optimizers):
        self.calls.append("scheduler")
        self.seen["scheduler"] = scheduler_of(optimizers)
        return self.seen["scheduler"]

    def restore(self, record, model=None, **options):
        return record.restore(
            Net(9) if model is None else model, self.scheduler, restore_model=self.model, restore_groups=self.groups,
            **options,
        )  # fmt: skip


@pytest.fixture(params=["given", "loaded", "bytes"])
def way(request, tmp_path):
    """A record as it was captured, and after it was stored."""

    def through(record):
        if request.param == "given":
            return record
        if request.param == "bytes":
            return segue.from_bytes(segue.to_bytes(record))
        segue.save(record, tmp_path / "record")
        return segue.load(tmp_path / "record")

    return through


def test_behaviour_19_another_version_is_refused_before_any_function_is_called():
    spy = Spy()
    with pytest.raises(UnsupportedFormat):
        spy.restore(dataclasses.replace(half_finished().capture(), version=2))
    assert spy.calls == []


def test_behaviour_20_what_restore_model_raises_comes_out_as_it_is():
    spy, error = Spy(), KeyError("mine")

    def fails(state, model):
        raise error

    with pytest.raises(KeyError) as caught:
        half_finished().capture().restore(
            Net(), spy.scheduler, restore_model=fails, restore_groups=spy.groups
        )
    assert caught.value is error
    assert spy.calls == []


def test_behaviour_21_an_extra_trainable_parameter_is_refused_before_the_groups():
    spy = Spy(lambda model: model.register_parameter("extra", nn.Parameter(torch.zeros(2))))
    with pytest.raises(ContractMismatch) as caught:
        spy.restore(half_finished().capture())
    assert caught.value.code == "model.extra.extra"
    assert spy.calls == ["model"]


def _set(path, make):
    def change(model):
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, make(model.get_parameter(path)))

    return change


CHANGES = {
    "missing": (lambda model: delattr(model.first, "bias"), "model.missing.first.bias"),
    "reshaped": (_set("first.bias", lambda p: nn.Parameter(p.detach().reshape(2, 2))), "model.shape.first.bias"),
    "another dtype": (_set("first.bias", lambda p: nn.Parameter(p.detach().double())), "model.dtype.first.bias"),
    "frozen": (lambda model: model.first.bias.requires_grad_(False), "model.missing.first.bias"),
    "thawed": (lambda model: model.frozen.bias.requires_grad_(True), "model.extra.frozen.bias"),
    "another layout": (
        _set("first.weight", lambda p: nn.Parameter(p.detach().t().contiguous().t())), "model.strides.first.weight",
    ),
    "tied": (lambda model: setattr(model, "twin", model.first.bias), "model.tied.first.bias"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code"), CHANGES.values(), ids=CHANGES)
def test_behaviour_22_other_trainable_parameters_are_refused_before_the_groups(change, code):
    spy = Spy(change)
    with pytest.raises(ContractMismatch) as caught:
        spy.restore(half_finished().capture())
    assert code in {finding.code for finding in caught.value.findings}
    assert spy.calls == ["model"]


def test_behaviour_23_frozen_parameters_and_buffers_are_the_functions_duty():
    def change(model):
        model.frozen = nn.Linear(4, 4, bias=False, dtype=torch.float64).requires_grad_(False)
        del model.seen

    spy = Spy(change)
    restored = spy.restore(half_finished().capture())
    assert spy.calls == ["model", "groups", "scheduler"]
    assert restored.model.frozen.weight.dtype is torch.float64


def test_behaviour_24_a_parameter_that_the_groups_freeze_is_refused_and_no_scheduler_is_made():
    spy = Spy(change_after_groups=lambda model: model.first.bias.requires_grad_(False))
    model = Net(9)
    with pytest.raises(ContractMismatch) as caught:
        spy.restore(half_finished().capture(), model)
    assert caught.value.code == "model.missing.first.bias"
    assert spy.calls == ["model", "groups"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_behaviour_25_each_function_is_called_once_with_what_was_saved(way):
    loop, spy, model = half_finished(), Spy(), Net(9)
    saved = {"model_state": segue.capture_module(loop.model), "groups": loop.groups()}
    record = way(loop.capture(**saved))
    spy.restore(record, model)
    assert spy.calls == ["model", "groups", "scheduler"]
    assert spy.seen["given"] is spy.seen["restored"] is model
    if record.is_given:
        assert spy.seen["model_state"] is saved["model_state"]
        assert spy.seen["groups"] is saved["groups"]
    again = record.capture(model, model_state=spy.seen["model_state"], groups=spy.seen["groups"])
    before = record.capture(model, **saved)
    assert segue.diff(again, before).identical


def test_behaviour_27_a_gradient_of_no_trainable_parameter_is_refused_before_anything_is_placed():
    record = half_finished().capture()
    for name in ("gone", "frozen.bias"):
        sums = GradientsRecord({**record.window.sums.tensors, name: tensor(shape=(4,))})
        spy, model = Spy(), Net(9)
        with pytest.raises(ContractMismatch) as caught:
            spy.restore(
                dataclasses.replace(record, window=dataclasses.replace(record.window, sums=sums)), model
            )
        assert caught.value.code == f"window.{name}"
        assert spy.calls == []
        assert all(parameter.grad is None for parameter in model.parameters())


def test_behaviour_28_a_gradient_of_another_shape_is_refused():
    record = half_finished(make_window=None).capture()
    gradients = GradientsRecord({**record.gradients.tensors, "first.bias": tensor(shape=(2, 2))})
    spy = Spy()
    with pytest.raises(ContractMismatch) as caught:
        spy.restore(dataclasses.replace(record, gradients=gradients))
    assert caught.value.code == "gradient.first.bias"
    assert spy.calls == []


def _take_bf16(model):
    for parameter in model.parameters():
        parameter.grad_dtype = torch.bfloat16


def test_behaviour_29_a_gradient_that_fails_after_the_groups_leaves_the_scheduler():
    loop = half_finished(make_window=None)
    spy, model = Spy(change_after_groups=_take_bf16), Net(9)
    with pytest.raises(ContractMismatch):
        spy.restore(loop.capture(), model)
    assert spy.calls == ["model", "groups"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_behaviour_29_so_does_a_prepared_one():
    loop = half_finished(make_window=None)
    model = Net(9)
    optimizers = optimizers_of(model)
    prepared = scheduler_of(optimizers)
    before = dict(vars(prepared))

    def groups(given, records):
        for name, optimizer in optimizers.items():
            segue.restore_optimizer(records[name], optimizer, given)
        _take_bf16(given)
        return given, optimizers

    with pytest.raises(ContractMismatch):
        loop.capture().restore(model, prepared, restore_model=restore_model, restore_groups=groups)
    assert vars(prepared) == before


def test_behaviour_29_nor_is_it_moved_where_the_contract_has_nothing_against_a_gradient():
    """Of another dtype than its parameter takes: only the check of what is pending can tell, the last one of all."""
    loop = half_finished(make_window=None)
    model = Net(9)
    optimizers = optimizers_of(model)
    prepared = scheduler_of(optimizers)
    before = dict(vars(prepared))
    odd = GradientsRecord({"first.bias": tensor("bfloat16", (4,))})
    record = dataclasses.replace(loop.capture(), gradients=odd)

    def groups(given, records):
        for name, optimizer in optimizers.items():
            segue.restore_optimizer(records[name], optimizer, given)
        return given, optimizers

    with pytest.raises(ContractMismatch) as caught:
        record.restore(model, prepared, restore_model=restore_model, restore_groups=groups)
    assert caught.value.code.startswith("gradient.")
    assert vars(prepared) == before
    assert vars(prepared) != vars(loop.scheduler)


def test_behaviour_30_the_next_rate_is_that_of_the_uninterrupted_run(way):
    loop = half_finished()
    restored = way(loop.capture()).restore(Net(9), scheduler_of, **CALLBACKS)
    for _ in range(3):
        assert restored.scheduler.get_last_lr() == loop.scheduler.get_last_lr()
        assert restored.optimizer["sgd"].param_groups[0]["lr"] == loop.optimizers["sgd"].param_groups[0]["lr"]
        for optimizer in (*restored.optimizer.values(), *loop.optimizers.values()):
            optimizer.step()
        restored.scheduler.step()
        loop.scheduler.step()


@pytest.mark.parametrize("make", [half_finished, weighted])
def test_behaviour_31_pending_sums_have_the_same_bits_undivided(make, way):
    loop = make()
    restored = way(loop.capture()).restore(Net(9), scheduler_of, **CALLBACKS)
    live = [bits(total) for _, total in loop.window.sums()]
    assert [bits(total) for _, total in restored.accumulator.sums()] == live
    assert len(live) == 4


def test_behaviour_31_gradients_in_grad_have_the_same_bits(way):
    loop = half_finished(make_window=None)
    restored = way(loop.capture()).restore(Net(9), scheduler_of, **CALLBACKS)
    assert restored.accumulator is None
    assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)


def test_behaviour_32_the_live_groups_are_what_the_function_returned():
    live = (object(), [object()])
    restored = half_finished().capture(scheduler=None).restore(
        Net(9), restore_model=restore_model, restore_groups=lambda model, groups: (model, live)
    )  # fmt: skip
    assert restored.optimizer is live


def test_behaviour_33_no_process_group_is_made():
    restored = half_finished().capture().restore(Net(9), scheduler_of, **CALLBACKS)
    assert isinstance(restored, segue.RestoredTraining)
    assert not torch.distributed.is_initialized()


def test_behaviour_34_a_weighted_record_restored_plainly_gives_the_pair(way):
    loop = weighted()
    restored = way(loop.capture(state=["mine"])).restore(Net(9), scheduler_of, **CALLBACKS)
    assert restored.state == (loop.window.window_state(), ["mine"])
    assert isinstance(restored.accumulator, segue.GradientAccumulator)
    assert restored.accumulator.microbatches == loop.window.microbatches == 1


def test_behaviour_34_restored_as_weighted_it_goes_on(way):
    loop = weighted()
    restored = way(loop.capture(state=["mine"])).restore_weighted(Net(9), scheduler_of, **CALLBACKS)
    assert restored.state == ["mine"]
    assert isinstance(restored.accumulator, segue.WeightedAccumulator)
    assert restored.accumulator.window_state() == loop.window.window_state()
    assert [bits(total) for _, total in restored.accumulator.sums()] == [
        bits(total) for _, total in loop.window.sums()
    ]


@pytest.mark.parametrize("options", [{}, {"make_window": None}])
def test_a_record_without_a_weighted_window_has_none_to_go_on_with(options):
    spy = Spy()
    with pytest.raises(ContractMismatch) as caught:
        half_finished(**options).capture().restore_weighted(
            Net(9), restore_model=spy.model, restore_groups=spy.groups
        )
    assert caught.value.code == "window.kind"
    assert spy.calls == []


def test_behaviour_40_the_frozen_base_stays_the_same_memory_untouched():
    loop = half_finished()
    adapter = {name: p.detach().clone() for name, p in loop.model.named_parameters() if p.requires_grad}
    model = Net(9)
    base = [(p.data_ptr(), p._version, bits(p)) for p in model.frozen.parameters()]

    def put_adapter(state, model):
        with torch.no_grad():
            for name, value in state.items():
                model.get_parameter(name).copy_(value)

    restored = loop.capture(model_state=adapter).restore(
        model, scheduler_of, restore_model=put_adapter, restore_groups=restore_groups
    )
    assert [(p.data_ptr(), p._version, bits(p)) for p in restored.model.frozen.parameters()] == base


def _lossy(record):
    bias = converted(tensor(shape=(4,)), torch.bfloat16)
    return dataclasses.replace(record, gradients=GradientsRecord({"first.bias": bias}))


def _quantized(record):
    bias = QuantizedTensor(QuantScheme(QuantValue.Q8S), (4,), tensor("uint8", (8,)))
    return dataclasses.replace(record, gradients=GradientsRecord({"first.bias": bias}))


@pytest.mark.parametrize(
    ("spoil", "error"), [(_lossy, LossyRecord), (_quantized, ContractMismatch)], ids=["lossy", "quantized"]
)
def test_behaviour_41_optimizer_and_scheduler_are_made_after_pending_gradients_were_checked(spoil, error):
    record, calls = half_finished(make_window=None).capture(), []
    with pytest.raises(error):
        spoil(record).restore(
            Net(9), lambda live: calls.append("scheduler"), restore_model=restore_model,
            restore_optimizer=lambda model, state, groups: calls.append("optimizer"),
        )  # fmt: skip
    assert calls == []


def test_behaviour_42_the_factory_sees_the_final_model_the_callers_state_and_the_saved_record(way):
    loop, seen, model = half_finished(), {}, Net(9)

    def make(model, state, groups):
        seen.update(
            model=model,
            state=state,
            dtypes={p.dtype for p in model.parameters()},
            bits=bits(model.first.weight),
        )
        _, optimizers = restore_groups(model, groups)
        return optimizers

    restored = way(loop.capture(state={"at": 7})).restore(
        model, scheduler_of, restore_model=restore_model, restore_optimizer=make
    )
    assert seen["model"] is restored.model is model
    assert seen["state"] == restored.state == {"at": 7}
    assert seen["bits"] == bits(loop.model.first.weight)
    assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)


def test_behaviour_42_of_a_weighted_record_it_sees_the_counters_too():
    loop, seen = weighted(), []

    def make(model, state, groups):
        seen.append(state)
        return restore_groups(model, groups)[1]

    restored = loop.capture(state=1).restore_weighted(
        Net(9), scheduler_of, restore_model=restore_model, restore_optimizer=make
    )
    assert seen == [(loop.window.window_state(), 1)]
    assert restored.state == 1


class MixedPrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.float16))
        self.bias = nn.Parameter(torch.ones(2))
        self.tied = self.weight


def test_behaviour_77_mixed_dtypes_and_ties_come_back_as_they_were():
    model = MixedPrecision()
    with torch.no_grad():
        model.weight.mul_(3)
    restored = segue.TrainingRecord.capture(model, model_state=segue.capture_module(model)).restore(
        MixedPrecision(), restore_model=restore_model
    )
    assert restored.model.weight is restored.model.tied
    assert (restored.model.weight.dtype, restored.model.bias.dtype) == (torch.float16, torch.float32)
    assert restored.model.weight.tolist() == [[3, 3], [3, 3]]
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in restored.model.parameters())


MODULES = {
    "missing": lambda model: delattr(model, "bias"),
    "extra": lambda model: model.register_parameter("extra", nn.Parameter(torch.ones(1))),
    "another dtype": lambda model: setattr(model, "bias", nn.Parameter(model.bias.detach().half())),
    "other trainability": lambda model: model.bias.requires_grad_(False),
    "untied": lambda model: setattr(model, "tied", nn.Parameter(model.weight.detach().clone())),
}


@pytest.mark.parametrize("change", MODULES.values(), ids=MODULES)
def test_behaviour_78_a_module_of_other_entries_is_refused_unchanged(change):
    record = segue.capture_module(MixedPrecision())
    model = MixedPrecision()
    change(model)
    with torch.no_grad():
        model.weight.zero_()
    before = {name: (p._version, bits(p)) for name, p in model.named_parameters()}
    with pytest.raises(ContractMismatch):
        segue.restore_module(record, model)
    assert {name: (p._version, bits(p)) for name, p in model.named_parameters()} == before


def test_a_model_may_be_made_by_the_function_that_restores_it(way):
    loop = half_finished()

    def build(state, nothing):
        assert nothing is None
        model = Net(3)
        segue.restore_module(state, model)
        return model

    restored = way(loop.capture()).restore(
        None, scheduler_of, restore_model=build, restore_groups=restore_groups
    )
    assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)


def test_the_groups_may_return_another_model():
    loop, other = half_finished(), Net(4)

    def groups(model, records):
        other.load_state_dict(model.state_dict())
        return restore_groups(other, records)

    restored = loop.capture().restore(
        Net(9), scheduler_of, restore_model=restore_model, restore_groups=groups
    )
    assert restored.model is other
    assert restored.accumulator.model is other


def test_a_record_can_be_restored_again_and_shares_nothing_with_what_came_out(way):
    loop = half_finished(make_window=None)
    record = way(loop.capture())
    first = record.restore(Net(9), scheduler_of, **CALLBACKS)
    for optimizer in first.optimizer.values():
        optimizer.step()
    for parameter in first.model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    second = record.restore(Net(9), scheduler_of, **CALLBACKS)
    assert everything(second.model, second.optimizer) == everything(loop.model, loop.optimizers)


def test_what_came_out_is_not_the_inference_tensors_of_whoever_restores():
    loop = half_finished()
    model = Net(9)
    with torch.inference_mode():
        restored = loop.capture().restore(model, scheduler_of, **CALLBACKS)
    restored.model(torch.ones(1, 3)).sum().backward()
    restored.accumulator.add()


def test_pending_gradients_replace_what_stands_there():
    loop = half_finished(make_window=None)
    loop.model.second.bias.grad = None
    model = Net(9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 5.0) if parameter.requires_grad else None
    restored = loop.capture().restore(model, scheduler_of, **CALLBACKS)
    assert restored.model.second.bias.grad is None
    assert bits(restored.model.first.bias.grad) == bits(loop.model.first.bias.grad)


def test_a_record_of_training_is_restored_so_too(way):
    loop = half_finished()
    record = way(
        segue.Training(loop.model, loop.optimizers, loop.scheduler, accumulator=loop.window).capture(
            {"at": 1}
        )
    )
    assert record.kind == "full"
    restored = record.restore(Net(9), scheduler_of, **CALLBACKS)
    assert restored.state == {"at": 1}
    assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)
    assert restored.scheduler.get_last_lr() == loop.scheduler.get_last_lr()


def test_one_with_a_trainable_part_beside_its_base_is_too(way):
    loop = half_finished()
    base = segue.base_identity(loop.model)
    record = way(
        segue.Training(
            loop.model, loop.optimizers, loop.scheduler, accumulator=loop.window,
            model_state=segue.TrainableOnly(base=base),
        ).capture()
    )  # fmt: skip
    assert record.kind == "model_state"
    model = Net()  # the base is loaded from elsewhere
    with torch.no_grad():
        model.first.weight.zero_()
    restored = record.restore(model, scheduler_of, **CALLBACKS)
    assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)


def test_one_whose_model_an_object_of_the_callers_captures_is_too(way):
    class Archive:
        def __init__(self, model):
            self.model = model

        def capture(self):
            return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

        def check(self, state):
            return []

        def restore(self, state):
            with torch.no_grad():
                for name, value in state.items():
                    self.model.get_parameter(name).copy_(value)

    loop = half_finished()
    record = way(
        segue.Training(
            loop.model, loop.optimizers, loop.scheduler, accumulator=loop.window, model_state=Archive(loop.model)
        ).capture()
    )  # fmt: skip
    restored = record.restore(
        Net(9), scheduler_of, restore_model=lambda state, model: Archive(model).restore(state),
        restore_groups=restore_groups,
    )  # fmt: skip
    assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)


def test_one_with_components_is_not_since_nobody_would_take_them():
    loop = half_finished()
    record = segue.Training(loop.model, loop.optimizers, loop.scheduler, components={"ema": Net(2)}).capture()
    spy = Spy()
    with pytest.raises(ComponentMismatch, match="ema"):
        spy.restore(record)
    assert spy.calls == []


@pytest.mark.parametrize("groups", [None, {}])
def test_training_refuses_a_record_of_the_caller_and_says_how_to_restore_it(groups):
    loop = half_finished()
    record = loop.capture(groups=groups)
    training = segue.Training(loop.model, loop.optimizers, loop.scheduler, accumulator=loop.window)
    with pytest.raises(OptimizerMismatch) as caught:
        training.restore(record)
    assert caught.value.code == "record.kind"
    assert "record.restore(" in caught.value.hint


def test_training_restores_its_own_record_without_an_optimizer():
    class Archive:
        def __init__(self, model):
            self.model = model

        def capture(self):
            return self.model.bias.detach().clone()

        def check(self, state):
            return []

        def restore(self, state):
            with torch.no_grad():
                self.model.bias.copy_(state)

    model = nn.Linear(1, 1)
    training = segue.Training(model, {}, model_state=Archive(model), rng=None)
    record = training.capture(1)
    with torch.no_grad():
        model.bias.add_(1)
    assert training.restore(record) == 1
    assert segue.diff(training.capture(1), record).identical


def test_optimizers_that_nobody_restores_are_not_dropped():
    record = half_finished().capture()
    with pytest.raises(TypeError, match="restore_groups or restore_optimizer"):
        record.restore(Net(9), scheduler_of, restore_model=restore_model)
    with pytest.raises(TypeError, match="not both"):
        record.restore(Net(9), scheduler_of, restore_optimizer=lambda *_: None, **CALLBACKS)


def test_functions_that_return_something_else_are_told():
    record = half_finished().capture(scheduler=None)
    with pytest.raises(TypeError, match="restore_model returns the model"):
        record.restore(Net(9), restore_model=lambda state, model: 5, restore_groups=restore_groups)
    with pytest.raises(TypeError, match="restore_groups returns the model and the live optimizers"):
        record.restore(Net(9), restore_model=restore_model, restore_groups=lambda model, groups: model)


def test_damaged_bytes_are_found_before_any_function_is_called(tmp_path):
    segue.save(half_finished().capture(), tmp_path / "one")
    path = tmp_path / "one" / "training.safetensors"
    record = segue.load(tmp_path / "one")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    spy = Spy()
    with pytest.raises(CorruptCheckpoint):
        spy.restore(record)
    assert spy.calls == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "strange"}, InvalidRecord),
        ({"microbatches": 5}, WindowError),
        ({"loss_scale": -1.0}, WindowError),
    ],
    ids=["kind", "counters", "scale"],
)
def test_a_window_that_no_accumulator_has_is_refused_before_any_function_is_called(change, error):
    record, spy = weighted().capture(), Spy()
    state = dataclasses.replace(record.window.state, **change)
    with pytest.raises(error):
        spy.restore(dataclasses.replace(record, window=dataclasses.replace(record.window, state=state)))
    assert spy.calls == []


def test_another_environment_is_told():
    record = half_finished().capture()
    environment = {**record.environment, "torch": "0.1"}
    with pytest.warns(EnvironmentWarning, match="torch"):
        dataclasses.replace(record, environment=environment).restore(Net(9), scheduler_of, **CALLBACKS)


class TestSchedulers:
    def test_on_one_side_only_it_is_refused_before_any_function_is_called(self):
        spy = Spy()
        with pytest.raises(SchedulerMismatch):
            half_finished().capture(scheduler=None).restore(
                Net(9), scheduler_of, restore_model=spy.model, restore_groups=spy.groups
            )
        with pytest.raises(SchedulerMismatch):
            half_finished().capture().restore(Net(9), restore_model=spy.model, restore_groups=spy.groups)
        assert spy.calls == []

    def test_a_factory_that_makes_others_is_refused(self):
        with pytest.raises(SchedulerMismatch, match="missing"):
            half_finished().capture().restore(Net(9), lambda live: {"other": scheduler_of(live)}, **CALLBACKS)

    @pytest.mark.parametrize(
        "make",
        [
            lambda live: torch.optim.lr_scheduler.StepLR(live["sgd"], step_size=1, gamma=0.25),
            lambda live: torch.optim.lr_scheduler.ExponentialLR(live["sgd"], gamma=0.5),
        ],
        ids=["configuration", "class"],
    )
    def test_another_one_is_refused(self, make):
        with pytest.raises(SchedulerMismatch):
            half_finished().capture().restore(Net(9), make, **CALLBACKS)

    def test_one_that_drives_an_optimizer_of_before_is_refused(self):
        stale = scheduler_of(optimizers_of(Net(9)))
        with pytest.raises(SchedulerMismatch, match="not among the restored ones"):
            half_finished().capture().restore(Net(9), stale, **CALLBACKS)

    def test_several_by_name_are_restored_each(self, way):
        loop = half_finished()
        several = {
            "one": loop.scheduler,
            "two": torch.optim.lr_scheduler.ExponentialLR(loop.optimizers["adamw"], 0.9),
        }
        record = way(loop.capture(scheduler=several))
        restored = record.restore(
            Net(9),
            lambda live: {
                "one": scheduler_of(live), "two": torch.optim.lr_scheduler.ExponentialLR(live["adamw"], 0.9)
            },
            **CALLBACKS,
        )  # fmt: skip
        assert restored.scheduler["one"].get_last_lr() == loop.scheduler.get_last_lr()
        assert restored.scheduler["two"].last_epoch == 0

    def test_an_object_with_a_state_dict_takes_its_state(self, way):
        class Plateau:
            def __init__(self, best):
                self.best = best

            def state_dict(self):
                return {"best": self.best}

            def load_state_dict(self, state):
                self.best = state["best"]

        plateau = Plateau(0.0)
        record = way(half_finished().capture(scheduler=Plateau(0.25)))
        assert record.restore(Net(9), plateau, **CALLBACKS).scheduler is plateau
        assert plateau.best == 0.25
        with pytest.raises(SchedulerMismatch, match="another class"):
            record.restore(Net(9), scheduler_of, **CALLBACKS)

    def test_one_that_refuses_its_state_is_put_back(self):
        class Stubborn:
            def __init__(self):
                self.position = 1

            def state_dict(self):
                return {"position": self.position}

            def load_state_dict(self, state):
                self.position = state["position"]
                if self.position == 1:
                    raise ValueError("no")

        record = half_finished().capture(scheduler=Stubborn())
        live = Stubborn()
        live.position = 3
        with pytest.raises(ComponentMismatch):
            record.restore(Net(9), live, **CALLBACKS)
        assert live.position == 3

    def test_a_scheduler_that_moves_momentum_too_is_made_without_a_trace(self, way):
        def one_cycle(live):
            return torch.optim.lr_scheduler.OneCycleLR(live["sgd"], max_lr=1.0, total_steps=10)

        def built():
            model = Net()
            optimizers = optimizers_of(model)
            return model, optimizers, one_cycle(optimizers)

        model, optimizers, scheduler = built()
        for _ in range(3):
            optimizers["sgd"].step()
            scheduler.step()
        record = way(
            segue.TrainingRecord.capture(
                model, model_state=segue.capture_module(model), scheduler=scheduler,
                groups={name: segue.capture_optimizer(item, model) for name, item in optimizers.items()},
            )
        )  # fmt: skip
        restored = record.restore(Net(9), one_cycle, **CALLBACKS)
        assert everything(restored.model, restored.optimizer) == everything(model, optimizers)
        for each in (optimizers["sgd"], restored.optimizer["sgd"]):
            each.step()
        scheduler.step()
        restored.scheduler.step()
        assert everything(restored.model, restored.optimizer) == everything(model, optimizers)


class TestDevices:
    def test_behaviour_37_a_model_elsewhere_is_refused_and_not_moved(self):
        model = Net(9)
        model.frozen = nn.Linear(4, 4, device="meta").requires_grad_(False)
        spy = Spy()
        with pytest.raises(DeviceMismatch) as caught:
            half_finished().capture().restore(
                model,
                spy.scheduler,
                restore_model=lambda state, model: model,
                restore_groups=spy.groups,
                device="cpu",
            )
        assert {finding.code for finding in caught.value.findings} == {
            "model.device.frozen.weight", "model.device.frozen.bias"
        }  # fmt: skip
        assert spy.calls == []
        assert model.frozen.weight.device.type == "meta"

    def test_behaviour_37_meta_is_no_device_to_go_on_with(self):
        with pytest.raises(DeviceMismatch, match="no values"):
            half_finished().capture().restore(Net(9), scheduler_of, device="meta", **CALLBACKS)

    def test_without_a_device_trainable_parameters_on_meta_are_refused_by_name(self):
        model = Net(9)
        model.first = nn.Linear(3, 4, device="meta")
        with pytest.raises(UnsupportedState, match="meta tensor has no values"):
            half_finished().capture().restore(
                model, scheduler_of, restore_model=lambda state, model: model, restore_groups=restore_groups
            )

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
    def test_a_device_that_does_not_exist_is_told(self):
        with pytest.raises(DeviceMismatch, match="no such device"):
            half_finished().capture().restore(Net(9), scheduler_of, device="cuda", **CALLBACKS)

    def test_behaviour_38_of_several_violations_the_device_comes_first_then_the_contract(self):
        record = half_finished(make_window=None).capture()
        elsewhere = Net(9)
        elsewhere.second = nn.Linear(7, 2, device="meta")
        reshaped = Net(9)
        reshaped.second = nn.Linear(7, 2)

        def restore(model):
            with pytest.raises(MismatchError) as caught:
                record.restore(
                    model, scheduler_of, restore_model=lambda state, model: model, restore_groups=restore_groups,
                    device="cpu",
                )  # fmt: skip
            return type(caught.value), caught.value.code

        assert restore(elsewhere) == (DeviceMismatch, "model.device.second.weight")
        assert restore(reshaped) == (ContractMismatch, "model.shape.second.weight")

    def test_a_model_state_that_was_loaded_for_a_device_asks_for_it(self):
        record = half_finished().capture(groups=None, scheduler=None)
        assert record.with_device("cpu").restore(Net(9), restore_model=restore_model).state == {
            "microbatch": 3
        }
        with pytest.raises(DeviceMismatch):
            record.with_device("meta").restore(Net(9), restore_model=restore_model)
        assert half_finished().capture().with_device("meta").restore(Net(9), scheduler_of, **CALLBACKS)

    def test_the_requested_device_is_the_models_own(self, way):
        loop = half_finished()
        restored = way(loop.capture()).restore(Net(9), scheduler_of, device=torch.device("cpu"), **CALLBACKS)
        assert everything(restored.model, restored.optimizer) == everything(loop.model, loop.optimizers)

    def test_behaviour_26_each_pending_gradient_is_on_its_parameters_own_device(self, tmp_path):
        assert in_new_process(shelf.restored_on_both, str(tmp_path)) == 0

    def test_behaviour_37_a_second_device_is_told_from_the_first(self, tmp_path):
        assert in_new_process(shelf.refused_elsewhere, str(tmp_path)) == 0

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
    def test_behaviour_26_on_an_accelerator(self, way):
        def placed(seed):
            model = Net(seed)
            model.second.to("cuda")
            return model

        def gradients(model):
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.full_like(parameter, 2.0)
            return model

        model = gradients(placed(0))
        record = way(segue.TrainingRecord.capture(model, model_state=segue.capture_module(model)))
        restored = record.restore(placed(1), restore_model=restore_model)
        assert {p.device.type for p in restored.model.parameters()} == {"cpu", "cuda"}
        for name, parameter in restored.model.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.device == parameter.device
                assert bits(parameter.grad.cpu()) == bits(model.get_parameter(name).grad.cpu())
        with pytest.raises(DeviceMismatch):
            record.restore(placed(1), restore_model=restore_model, device="cuda")
