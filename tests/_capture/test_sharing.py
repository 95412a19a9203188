"""Memory shared between the model and a component is kept, or the difference is refused."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from segue import Training
from segue._capture.sharing import shared_between
from segue._record.diff import diff
from segue.errors import ContractMismatch
from tests.cases.state import live, stored


class Head(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, 2)) if weight is None else weight


def build(share, layer="layer"):
    torch.manual_seed(0)
    model = nn.Module()
    model.add_module(layer, nn.Linear(2, 2))
    loss = Head(share(model.get_submodule(layer).weight))
    optimizer = SGD(model.parameters(), lr=0.1)
    return model, loss, Training(model, optimizer, components={"loss": loss}, rng=None)


def nothing(weight):
    return None


def object_itself(weight):
    return weight


def view(weight):
    return nn.Parameter(weight.detach()[1:])


def whole_view(weight):
    return nn.Parameter(weight.detach())


def test_objects_views_and_offsets_are_told_with_their_owner():
    model, loss, _ = build(view)
    other = Head(model.layer.weight)
    found = shared_between({"model": model, "component.loss": loss, "component.other": other})
    assert found == {
        "model": None,
        "component.loss": {"shares": {"w": {"with": ("model", "layer.weight"), "offset": 8, "same": False}}},
        "component.other": {"shares": {"w": {"with": ("model", "layer.weight"), "offset": 0, "same": True}}},
    }


def test_components_that_share_with_each_other_are_told_too():
    weight = nn.Parameter(torch.ones(1))
    found = shared_between(
        {"model": nn.Linear(1, 1), "component.a": Head(weight), "component.b": Head(weight)}
    )
    assert found["component.a"] is None
    assert found["component.b"]["shares"]["w"]["with"] == ("component.a", "w")


def test_memory_that_is_not_there_is_shared_by_nobody():
    empty = nn.Parameter(torch.empty(0))
    modules = {
        "model": Head(empty),
        "component.a": Head(empty),
        "component.b": nn.LazyLinear(2),
        "component.c": nn.Linear(1, 1, device="meta"),
    }
    assert set(shared_between(modules).values()) == {None}


@pytest.mark.parametrize("share", [object_itself, view, whole_view, nothing])
def test_the_same_sharing_is_restored_and_stays(share, tmp_path):
    model, loss, training = build(share)
    with torch.no_grad():
        model.layer.weight.fill_(3)
    record = stored(training.capture(), tmp_path)
    model_2, loss_2, resumed = build(share)
    resumed.restore(record)
    assert diff(record, resumed.capture()).identical
    with torch.no_grad():
        model.layer.weight.mul_(2)
        model_2.layer.weight.mul_(2)
    assert live(loss) == live(loss_2)


@pytest.mark.parametrize("now", [object_itself, view, whole_view, nothing])
@pytest.mark.parametrize("then", [object_itself, view, whole_view, nothing])
def test_any_other_sharing_is_refused_and_nothing_is_touched(then, now):
    if then is now:
        return
    record = build(then)[2].capture()
    model, loss, training = build(now)
    before = live(model), live(loss)
    with pytest.raises(ContractMismatch) as caught:
        training.restore(record)
    assert "component.loss.shared" in [finding.code for finding in caught.value.findings]
    assert (live(model), live(loss)) == before


def test_the_owner_is_named_and_follows_a_rename():
    record = build(object_itself)[2].capture()
    training = build(object_itself, "dense")[2]
    training.restore(record, rename={"layer": "dense"})
    with pytest.raises(ContractMismatch, match="shares memory") as caught:
        build(nothing)[2].restore(record)
    assert "model/layer.weight" in str(caught.value)


def test_the_order_in_which_components_are_given_makes_no_difference():
    weight = nn.Parameter(torch.ones(2, 2))
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    one, other = Head(weight), Head(weight)
    record = Training(model, optimizer, components={"a": one, "b": other}, rng=None).capture()
    Training(model, optimizer, components={"b": other, "a": one}, rng=None).restore(record)
