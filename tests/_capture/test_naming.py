"""Canonical names: wrappers are seen through by type, a user's own names never are."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from segue import Training
from segue._capture.naming import named_tensors, register_wrapper, unwrapped, walk
from segue._record.diff import diff
from segue.errors import EnvironmentWarning, UnsupportedState


def compiled(module):
    return torch.compile(module, backend="eager")


class Shell(nn.Module):
    """A wrapper of the user's own, which is no wrapper to us."""

    def __init__(self, inner, attribute):
        super().__init__()
        self.add_module(attribute, inner)


def names(module):
    return list(named_tensors(module, "model"))


def stack(order=("first", "last")):
    made = nn.Module()
    for name in order:
        made.add_module(name, nn.Linear(2, 2))
    return made


PLAIN = ["0.weight", "0.bias", "1.weight", "1.bias"]


def layers():
    return [nn.Linear(2, 2), nn.Linear(2, 2)]


def compiled_in_place():
    module = nn.Sequential(*layers())
    module.compile(backend="eager")
    return module


def partly_compiled():
    first, second = layers()
    return nn.Sequential(compiled(first), second)


WRAPPINGS = {
    "plain": lambda: nn.Sequential(*layers()),
    "compiled": lambda: compiled(nn.Sequential(*layers())),
    "compiled in place": compiled_in_place,
    "compiled in part": partly_compiled,
    "compiled twice over": lambda: compiled(partly_compiled()),
    "data parallel": lambda: nn.DataParallel(nn.Sequential(*layers())),
    "data parallel inside": lambda: nn.Sequential(*map(nn.DataParallel, layers())),
    "compiled data parallel": lambda: compiled(nn.DataParallel(nn.Sequential(*layers()))),
    "data parallel compiled": lambda: nn.DataParallel(partly_compiled()),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrappers_leave_no_trace_in_names(wrapping):
    module = WRAPPINGS[wrapping]()
    assert names(module) == PLAIN
    assert [path for path, _ in walk(module, "model")] == ["", "0", "1"]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_record_fits_the_model_in_every_other_wrapping(wrapping):
    def bound(module):
        return Training(module, torch.optim.SGD(module.parameters(), lr=0.1), rng=None)

    torch.manual_seed(0)
    record = bound(WRAPPINGS["plain"]()).capture()
    training = bound(WRAPPINGS[wrapping]())
    with pytest.warns(EnvironmentWarning, match="compiled") if "compiled" in wrapping else nullcontext():
        training.restore(record)
    assert diff(record, training.capture()).identical


@pytest.mark.parametrize("attribute", ["module", "_orig_mod", "_checkpoint_wrapped_module"])
def test_a_users_own_submodule_keeps_its_name(attribute):
    module = Shell(nn.Linear(1, 1), attribute)
    assert names(module) == [f"{attribute}.weight", f"{attribute}.bias"]
    assert names(nn.DataParallel(module)) == names(compiled(module)) == names(module)


def test_a_wrapped_module_beside_one_that_is_called_like_it_stays_apart():
    module = nn.Module()
    module.module = nn.Linear(1, 1, bias=False)
    module.inner = nn.DataParallel(nn.Linear(1, 1, bias=False))
    assert names(module) == ["module.weight", "inner.weight"]


def test_a_subclass_of_a_wrapper_is_a_wrapper_unless_it_holds_something_of_its_own():
    class Mine(nn.DataParallel):
        pass

    wrapper = Mine(nn.Linear(1, 1, bias=False))
    assert names(wrapper) == ["weight"]
    wrapper.register_buffer("scale", torch.ones(1))
    assert names(wrapper) == ["scale", "module.weight"]


def test_other_wrappers_can_be_registered():
    class Sharded(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.core = inner

    inner = nn.Linear(1, 1, bias=False)
    assert names(Sharded(inner)) == ["core.weight"]
    register_wrapper(Sharded, "core")
    assert names(Sharded(inner)) == ["weight"]
    assert unwrapped(Sharded(Sharded(inner))) is inner


def test_what_is_registered_on_a_wrapper_itself_is_refused_not_dropped():
    wrapper = nn.DataParallel(nn.Linear(1, 1))
    wrapper.register_buffer("scale", torch.ones(1))
    with pytest.raises(UnsupportedState, match="of its own") as caught:
        names(wrapper)
    assert caught.value.code == "capture.wrapper"
    assert caught.value.found == "scale"


@pytest.mark.parametrize("order", [("head", "embedding"), ("embedding", "head")])
def test_a_tied_tensor_has_one_name_in_either_order_of_declaration(order):
    shared = nn.Parameter(torch.ones(2, 2))
    module = stack(order)
    module.head.weight = module.embedding.weight = shared
    found = named_tensors(module, "model")
    assert found["embedding.weight"].tensor is shared
    assert found["embedding.weight"].aliases == ("embedding.weight", "head.weight")
    assert "head.weight" not in found
    # The place is that of the first occurrence, where `parameters()` yields it.
    assert next(iter(found)) == "embedding.weight"


def test_a_module_in_two_places_is_named_once_and_walked_twice():
    module = nn.Module()
    module.b = module.a = nn.Linear(1, 1)
    assert list(named_tensors(module, "model")) == ["a.weight", "a.bias"]
    assert [path for path, _ in walk(module, "model")] == ["", "b", "a"]


def test_kinds_and_absent_buffers_are_told():
    module = nn.Module()
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("cache", torch.ones(1), persistent=False)
    module.register_buffer("later", None)
    module.register_parameter("none", None)
    module.weight = nn.Parameter(torch.ones(1))
    found = named_tensors(module, "model")
    kinds = {name: item.kind for name, item in found.items()}
    assert kinds == {"weight": "parameter", "kept": "buffer", "cache": "transient", "later": "buffer"}
    assert found["later"].tensor is None


def test_parametrizations_keep_torchs_own_names():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert names(module) == ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]


def test_a_module_that_contains_itself_is_refused():
    module = nn.Sequential(nn.Linear(1, 1))
    module[0].back = module
    with pytest.raises(UnsupportedState, match="contains itself"):
        names(module)


def test_two_tensors_under_one_name_are_refused_not_merged():
    module = nn.Module()
    module.a = nn.Linear(1, 1, bias=False)
    module._parameters["a.weight"] = nn.Parameter(torch.zeros(1, 1))
    with pytest.raises(UnsupportedState, match="one name") as caught:
        names(module)
    assert caught.value.where == "model a.weight"
