import ctypes

import pytest
import torch
from torch import nn

from segue._capture.deferred import (
    DEFERRED_FROM_BYTES,
    DeferredCopies,
    deferrable,
    deferred_bytes,
    deferring,
    is_gated,
)
from segue._capture.staging import capture_tensor
from segue.errors import ConcurrentMutation
from tests._capture.held import Failing, Held

LARGE = (512, 512)
OPTIM = torch.optim


def large(fill=1.0):
    return nn.Parameter(torch.full(LARGE, fill))


def optimizer_over(parameter, cls, **options):
    optimizer = cls([parameter], lr=0.01, **options)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


class Deferral:
    """One tensor, captured with its copy held."""

    def __init__(self, tensor):
        self.before = tensor.detach().clone()
        self.held = Held()
        self.copies = DeferredCopies([tensor], self.held)
        with deferring(self.copies):
            self.captured = capture_tensor(tensor, "model weight")
        self.ended = []
        self.copies.start(self.ended.append)

    def sealed(self):
        self.held.release()
        self.copies.seal()
        return self.captured.to_host()


# What the version counter shows, and what it doesn't.


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}], ids=["foreach", "for-loop"])
@pytest.mark.parametrize(
    "cls", [OPTIM.SGD, OPTIM.Adam, OPTIM.AdamW, OPTIM.NAdam, OPTIM.Adagrad, OPTIM.RMSprop]
)
def test_steps_of_many_kernels_move_the_version_of_all_that_they_write(cls, options):
    if cls in (OPTIM.SGD, OPTIM.RMSprop):
        options = {**options, "momentum": 0.9}
    parameter = large()
    optimizer = optimizer_over(parameter, cls, **options)
    written = [parameter, *optimizer.state[parameter].values()]
    before = [tensor._version for tensor in written]
    optimizer.step()
    assert all(tensor._version > version for tensor, version in zip(written, before, strict=True))


@pytest.mark.parametrize("cls", [OPTIM.SGD, OPTIM.Adam, OPTIM.AdamW, OPTIM.Adagrad])
def test_fused_steps_move_no_version_but_that_of_their_counter(cls):
    """If this fails, torch has learnt to tell, and the notes in `deferred` are out of date."""
    parameter = large()
    options = {"momentum": 0.9} if cls is OPTIM.SGD else {}
    optimizer = optimizer_over(parameter, cls, fused=True, **options)
    slots = {name: slot for name, slot in optimizer.state[parameter].items() if name != "step"}
    written = [parameter, *slots.values()]
    before, values = [tensor._version for tensor in written], [tensor.detach().clone() for tensor in written]
    optimizer.step()
    assert not any(torch.equal(*pair) for pair in zip(written, values, strict=True))
    assert [tensor._version for tensor in written] == before


def write_in_place(parameter):
    with torch.no_grad():
        parameter.add_(1)


def write_by_copy(parameter):
    with torch.no_grad():
        parameter.copy_(torch.zeros(LARGE))


def write_through_a_view(parameter):
    with torch.no_grad():
        parameter[3].zero_()


def write_detached(parameter):
    parameter.detach()[5, 7] = 2.0


def write_in_inference_mode(parameter):
    with torch.inference_mode():
        parameter.mul_(2)


def write_foreach(parameter):
    torch._foreach_add_([parameter.detach()], 1)


def initialise(parameter):
    nn.init.zeros_(parameter)


def load(parameter):
    module = nn.Module()
    module.weight = parameter
    module.load_state_dict({"weight": torch.zeros(LARGE)})


VISIBLE = [
    write_in_place, write_by_copy, write_through_a_view, write_detached, write_in_inference_mode, write_foreach,
    initialise, load,
]  # fmt: skip


@pytest.mark.parametrize("write", VISIBLE)
def test_a_visible_write_before_the_copy_is_an_error_that_names_the_tensor(write):
    parameter = large()
    deferral = Deferral(parameter)
    version = parameter._version
    write(parameter)
    with pytest.raises(ConcurrentMutation) as error:
        deferral.sealed()
    assert (error.value.where, error.value.code) == ("model weight", "capture.mutation")
    assert (error.value.expected, error.value.found) == (
        f"version {version}",
        f"version {parameter._version}",
    )
    assert deferral.ended == [error.value]


@pytest.mark.parametrize("write", VISIBLE)
def test_a_visible_write_after_the_copy_and_before_the_decision_is_an_error_too(write):
    """The counter moves when an operation has ended, so only the thread that trains knows that none is under way."""
    parameter = large()
    copies = DeferredCopies([parameter])
    with deferring(copies):
        capture_tensor(parameter, "model weight")
    ended = []
    copies.start(ended.append, lambda work: work())
    assert ended == [None]
    write(parameter)
    with pytest.raises(ConcurrentMutation):
        copies.seal()
    with pytest.raises(ConcurrentMutation):
        copies.seal()
    copies.settle()


@pytest.mark.parametrize("write", VISIBLE)
def test_a_write_after_the_decision_is_no_concern(write):
    parameter = large()
    deferral = Deferral(parameter)
    deferral.sealed()
    write(parameter)
    assert torch.equal(deferral.sealed(), deferral.before)
    assert deferral.ended == [None]


def test_memory_that_is_replaced_is_still_what_is_copied():
    parameter = large()
    deferral = Deferral(parameter)
    pointer, version = parameter.data_ptr(), parameter._version
    parameter.data = torch.zeros(LARGE)
    assert parameter._version == version
    assert parameter.data_ptr() != pointer
    assert torch.equal(deferral.sealed(), deferral.before)


def write_data(parameter):
    parameter.data.clamp_(max=0.5)


def write_numpy(parameter):
    parameter.detach().numpy()[:] = 3


def write_the_storage(parameter):
    parameter.untyped_storage().fill_(0)


def write_memory(parameter):
    ctypes.memset(parameter.data_ptr(), 0, parameter.nbytes)


def step_fused_by_hand(parameter):
    optimizer_over(parameter, OPTIM.SGD, fused=True)


@pytest.mark.parametrize(
    "write", [write_data, write_numpy, write_the_storage, write_memory, step_fused_by_hand]
)
def test_a_hidden_write_over_a_whole_tensor_is_noticed_by_the_sample(write):
    parameter = large()
    deferral = Deferral(parameter)
    version = parameter._version
    write(parameter)
    assert parameter._version == version
    with pytest.raises(ConcurrentMutation, match="no version shows"):
        deferral.sealed()


# What is deferred.


def test_parameters_and_state_of_torch_optimizers_are_deferred_from_a_size_on():
    parameter, small = large(), nn.Parameter(torch.ones(8))
    optimizer = OPTIM.AdamW([parameter, small])
    for member in (parameter, small):
        member.grad = torch.ones_like(member)
    optimizer.step()
    slots = optimizer.state[parameter]
    expected = [parameter, slots["exp_avg"], slots["exp_avg_sq"]]
    assert [id(tensor) for tensor in deferrable([optimizer])] == [id(tensor) for tensor in expected]
    assert parameter.nbytes == DEFERRED_FROM_BYTES


def inference():
    with torch.inference_mode():
        return torch.ones(LARGE)


class Own(torch.Tensor):
    pass


UNFIT = {
    "too small": lambda: torch.ones(512, 511),
    "inference": inference,
    "subclass": lambda: torch.ones(LARGE).as_subclass(Own),
    "channels last": lambda: torch.ones(2, 512, 32, 32).to(memory_format=torch.channels_last),
    "slice of a flat buffer": lambda: torch.ones(1024, 512)[:512],
    "negative view": lambda: torch._neg_view(torch.ones(LARGE)),
    "sparse": lambda: torch.ones(LARGE).to_sparse(),
    "meta": lambda: torch.ones(LARGE, device="meta"),
    "no tensor": lambda: 3,
}


@pytest.mark.parametrize("kind", UNFIT)
def test_what_the_counter_can_not_vouch_for_is_copied_at_once(kind):
    parameter = large()
    optimizer = OPTIM.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["slot"] = UNFIT[kind]()
    assert [id(tensor) for tensor in deferrable([optimizer])] == [id(parameter)]


def test_a_frozen_parameter_in_a_group_is_copied_at_once():
    parameter = large().requires_grad_(False)
    assert deferrable([OPTIM.SGD([parameter], lr=0.1)]) == []


def test_an_optimizer_whose_step_runs_no_hooks_can_not_wait():
    parameter = large()
    optimizer = OPTIM.SGD([parameter], lr=0.1)
    OPTIM.lr_scheduler.StepLR(optimizer, 1)
    assert "step" in vars(optimizer)
    assert is_gated(optimizer)
    optimizer.step = lambda: None
    assert not is_gated(optimizer)
    assert deferrable([optimizer]) == []

    class Unhooked(OPTIM.SGD):
        pass

    other = Unhooked([parameter], lr=0.1)
    Unhooked.step = lambda self: None
    assert not is_gated(other)


def test_only_what_was_named_is_deferred_and_only_inside():
    named, other = large(), large()
    copies = DeferredCopies([named])
    with deferring(copies):
        assert deferred_bytes(other, "other") is None
        with deferring(None):
            assert deferred_bytes(named, "named") is None
        assert deferred_bytes(named, "named") is not None
    assert deferred_bytes(named, "named") is None
    assert len(copies) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex128, torch.int8, torch.bool])
def test_every_dtype_is_copied_bit_for_bit(dtype):
    tensor = torch.randint(0, 2, (2048, 1024)).to(dtype)
    assert torch.equal(Deferral(tensor).sealed(), tensor)


def test_deterministic_mode_does_not_fill_what_is_filled_later():
    torch.use_deterministic_algorithms(True)
    try:
        deferral = Deferral(large())
        assert torch.equal(deferral.sealed(), deferral.before)
    finally:
        torch.use_deterministic_algorithms(False)


# Ends.


def test_what_goes_wrong_in_the_thread_is_handed_over_and_nothing_waits_for_ever():
    parameter = large()
    copies = DeferredCopies([parameter], Failing)
    with deferring(copies):
        capture_tensor(parameter, "model weight")
    ended = []
    copies.start(ended.append)
    copies.settle()
    copies.seal()  # whose error is not ours: the future has it
    assert [type(error) for error in ended] == [MemoryError]


def test_without_a_thread_the_copies_are_made_at_once():
    def refuse(work):
        raise RuntimeError("can't start new thread")

    parameter = large()
    copies = DeferredCopies([parameter])
    with deferring(copies):
        captured = capture_tensor(parameter, "model weight")
    ended = []
    copies.start(ended.append, refuse)
    assert ended == [None]
    assert torch.equal(captured.to_host(), parameter)


def test_the_live_tensor_is_let_go_when_it_is_decided():
    deferral = Deferral(large())
    deferral.sealed()
    assert len(deferral.copies) == 0
