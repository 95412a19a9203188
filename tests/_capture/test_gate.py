import gc
import weakref

import pytest
import torch
from torch import nn

from segue._capture.deferred import DeferredCopies, deferring
from segue._capture.gate import StepGate
from segue._capture.staging import capture_tensor
from tests._capture.held import Held


def closed(optimizer, parameter):
    held = Held()
    copies = DeferredCopies([parameter], held)
    with deferring(copies):
        captured = capture_tensor(parameter, "model weight")
    gate = StepGate()
    gate.close([optimizer], copies)
    copies.start(lambda _: None)
    held.release_soon()
    return gate, copies, captured


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_a_step_waits_for_the_copies_and_decides_about_them(options):
    parameter = nn.Parameter(torch.ones(512, 512))
    optimizer = torch.optim.SGD([parameter], lr=0.1, **options)
    gate, copies, captured = closed(optimizer, parameter)
    before = parameter.detach().clone()
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not torch.equal(parameter, before)
    copies.seal()
    assert torch.equal(captured.to_host(), before)
    optimizer.step()
    gate.wait()


def test_hooks_of_the_program_that_write_wait_too():
    parameter = nn.Parameter(torch.ones(512, 512))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def decay(*_):
        with torch.no_grad():
            parameter.mul_(0.5)

    optimizer.register_step_pre_hook(decay)
    _gate, copies, captured = closed(optimizer, parameter)
    optimizer.step()
    copies.seal()
    assert torch.equal(captured.to_host(), torch.ones(512, 512))
    assert torch.equal(parameter.detach(), torch.full((512, 512), 0.5))


def test_a_step_raises_nothing_of_a_capture_that_went_wrong():
    parameter = nn.Parameter(torch.ones(512, 512))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    _gate, copies, _ = closed(optimizer, parameter)
    nn.init.zeros_(parameter)
    optimizer.step()
    with pytest.raises(Exception, match="changed before its copy"):
        copies.seal()


def test_hooks_are_added_once_and_keep_no_gate_alive():
    parameter = nn.Parameter(torch.ones(512, 512))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    gate = StepGate()
    before = len(optimizer._optimizer_step_pre_hooks)
    for _ in range(3):
        copies = DeferredCopies([])
        gate.close([optimizer], copies)
        copies.start(lambda _: None)
        gate.wait()
    assert len(optimizer._optimizer_step_pre_hooks) == before + 1
    alive = weakref.ref(gate)
    del gate
    gc.collect()
    assert alive() is None
    optimizer.step()
