"""What a module computes with besides tensors: taken down, and compared."""

import pytest
import torch
from torch import nn

from segue._capture.configuration import configuration_differences, configuration_of
from tests._session.adapted import Adapted


class Layer(nn.Module):
    """A LoRA layer as many write it: the scale beside modules that own the parameters."""

    def __init__(self, scale=2.0, dropout=0.1):
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.A, self.B = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.scale, self.rank, self.title, self.table, self._calls = scale, 2, "lora", {"a": 1}, 0
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.steps = 7
        self.tower = nn.ModuleDict({"first": Layer(**options)})


def taken(module, everywhere=True):
    return configuration_of(module, "model", everywhere=everywhere)


def codes(before, after):
    paths = {path for path, _ in before.named_modules()} & {path for path, _ in after.named_modules()}
    return [item.code for item in configuration_differences(taken(before), taken(after), paths, "model")]


def test_numbers_around_trained_parameters_are_taken_down_up_to_the_layer():
    found = taken(Net())
    assert found["tower.first"] == {"rank": 2, "scale": 2.0}
    assert found["tower.first.A"] == {"in_features": 4, "out_features": 2}
    assert found["tower.first.dropout"] == {"p": 0.1}
    # Beyond the layer, which holds something frozen, other things may count: nothing of the tower, nothing of the net.
    assert found.keys() == {"tower.first", "tower.first.A", "tower.first.B", "tower.first.dropout"}


def test_what_owns_a_trained_parameter_tells_every_plain_attribute():
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(2))
    module.scale, module.names, module.table, module._hidden, module.thing = (
        0.5,
        ("a", 1),
        {"a": None},
        3,
        object(),
    )
    module.kinds = {torch.float32}
    assert taken(module) == {
        "": {"kinds": {torch.float32}, "names": ("a", 1), "scale": 0.5, "table": {"a": None}}
    }


def test_where_the_whole_model_is_captured_and_has_no_adapter_there_is_nothing_to_take_down():
    assert taken(Adapted(), everywhere=False) is None
    assert taken(nn.Linear(2, 2).requires_grad_(False)) == {}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"scale": 2.0}, {"scale": 9.0}, ["model.configuration.scale"]),
        ({"scale": 2.0}, {"scale": 2}, []),
        ({"scale": 0.0}, {"scale": -0.0}, ["model.configuration.scale"]),
        ({"dropout": 0.0}, {"dropout": 0.1}, ["model.configuration.p"]),
        ({"dropout": 0.1}, {"dropout": 0.0}, ["model.configuration.p"]),
        ({"dropout": 0.1}, {"dropout": 0.1}, []),
    ],
)
def test_a_setting_differs_on_either_side_and_8_is_8_point_0(before, after, expected):
    assert codes(Net(**before), Net(**after)) == expected


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"a": 8}, {"a": 8.0}, True), ({"a": 8}, {"b": 8}, False), (True, 1, False), (2**53 + 1, float(2**53), False),
        (float("nan"), float("nan"), True), ([1], [1.0], False),
    ],
)  # fmt: skip
def test_settings_are_compared_as_numbers_and_not_as_python_does(left, right, equal):
    found = list(configuration_differences({"": {"x": left}}, {"": {"x": right}}, [""], "model"))
    assert (found == []) is equal


def test_one_finding_for_all_modules_where_a_setting_differs():
    before, after = {"a": {"p": 0.1}, "b": {"p": 0.1}}, {"a": {"p": 0.2}, "b": {"p": 0.2}}
    [finding] = configuration_differences(before, after, ["a", "b"], "model")
    assert (finding.where, finding.expected, finding.found) == (
        "model a and 1 other modules",
        "p=0.1",
        "p=0.2",
    )
    assert finding.admissible
