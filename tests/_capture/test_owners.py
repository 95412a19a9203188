"""Each parameter has one owner: what nobody steps, what two step, and what may look like either."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel

from segue import Training
from segue._capture.owners import inner_optimizers, own_groups
from segue.errors import UnsupportedState
from tests.exactness.strangers import Lookahead, OwnMomentum


def two_layers(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3, dtype=dtype), nn.Linear(3, 1, dtype=dtype))


def refused(code, model, optimizers, **options):
    training = Training(model, optimizers, rng=None, **options)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == code
    return caught.value


def captured(model, optimizers, **options):
    return Training(model, optimizers, rng=None, **options).capture()


def test_a_trainable_parameter_that_no_optimizer_owns_is_named():
    model = two_layers()
    error = refused("capture.unowned_parameter", model, SGD(model[1].parameters(), lr=0.1))
    assert (error.where, error.found) == ("model", "0.weight, 0.bias")
    assert "requires_grad_(False)" in error.hint
    assert "Training(model, {name: optimizer" in error.hint
    model[0].requires_grad_(False)
    captured(model, SGD(model[1].parameters(), lr=0.1))


def test_of_many_five_are_named_and_the_rest_counted():
    model = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(9))
    error = refused("capture.unowned_parameter", model, SGD(model[8].parameters(), lr=0.1))
    assert error.found == "0.weight, 1.weight, 2.weight, 3.weight, 4.weight and 3 more"


def test_a_group_added_as_the_layer_thaws_is_enough():
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = SGD(model[1].parameters(), lr=0.1)
    training = Training(model, optimizer, rng=None)
    training.capture()
    model[0].requires_grad_(True)
    with pytest.raises(UnsupportedState, match="no optimizer owns"):
        training.capture()
    optimizer.add_param_group({"params": list(model[0].parameters())})
    training.capture()


def test_without_any_optimizer_there_is_nothing_to_tell():
    assert captured(two_layers(), {}).optimizers == {}


def test_what_other_modules_hold_need_not_be_stepped():
    model = two_layers()
    average = AveragedModel(model)
    assert all(parameter.requires_grad for parameter in average.parameters())
    captured(model, SGD(model.parameters(), lr=0.1), components={"average": average})


class Silent:
    """Says nothing of what it steps."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}


def test_beside_an_object_that_does_not_say_what_it_steps_nothing_is_unowned():
    model = two_layers()
    captured(model, {"sgd": SGD(model[1].parameters(), lr=0.1), "other": Silent()})
    captured(model, Silent())


def test_an_object_with_param_groups_says_what_it_steps():
    model = two_layers()
    error = refused("capture.unowned_parameter", model, OwnMomentum(model[1].parameters(), lr=0.1))
    assert error.found == "0.weight, 0.bias"
    captured(
        model, {"own": OwnMomentum(model[1].parameters(), lr=0.1), "sgd": SGD(model[0].parameters(), lr=0.1)}
    )


@pytest.mark.parametrize("groups", [None, 3, [1], [{"params": 1}], [{"params": [1]}], [{}]])
def test_groups_of_another_shape_say_nothing(groups):
    thing = Silent()
    thing.param_groups = groups
    assert own_groups(thing) is None


def test_a_parameter_that_two_optimizers_own_is_refused_naming_both():
    model = two_layers()
    one, two = SGD(model.parameters(), lr=0.1), AdamW([{"params": []}, {"params": [model[1].bias]}])
    error = refused("capture.owned_twice", model, {"sgd": one, "adamw": two})
    assert error.where == "1.bias"
    assert error.found == "optimizer.sgd group 0 and optimizer.adamw group 1"


def test_groups_edited_by_hand_may_own_a_parameter_twice():
    model = two_layers()
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [model[0].weight]})
    error = refused("capture.owned_twice", model, optimizer)
    assert (error.where, error.found) == (
        "0.weight",
        "optimizer.optimizer group 0 and optimizer.optimizer group 1",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of it, and takes it
        twice = SGD([*model.parameters(), model[0].weight], lr=0.1)
    assert refused("capture.owned_twice", model, twice).where == "0.weight"


def test_a_tied_parameter_is_one():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    captured(model, SGD(model.parameters(), lr=0.1))
    error = refused(
        "capture.owned_twice",
        model,
        {"a": SGD([model[0].weight], lr=0.1), "b": SGD([model[1].weight], lr=0.1)},
    )
    assert error.where == "0.weight"


def test_two_parameters_over_one_memory_have_one_owner_too():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data[1:])
    captured(model, SGD(model.parameters(), lr=0.1))
    error = refused(
        "capture.owned_twice",
        model,
        {"a": SGD([model[0].weight], lr=0.1), "b": SGD([model[1].weight], lr=0.1)},
    )
    assert error.where == "1.weight"
    assert "0.weight in optimizer.a group 0" in error.found


def test_neighbours_in_one_storage_may_have_owners_of_their_own():
    flat = torch.zeros(8)
    model = nn.ParameterDict({"a": nn.Parameter(flat[:4]), "b": nn.Parameter(flat[4:])})
    captured(model, {"a": SGD([model["a"]], lr=0.1), "b": SGD([model["b"]], lr=0.1)})


def test_an_object_and_the_optimizer_in_it_are_two_owners():
    model = two_layers()
    lookahead = Lookahead(model.parameters(), lr=0.1)
    error = refused("capture.owned_twice", model, {"fast": lookahead.optimizer, "slow": lookahead})
    assert error.found == "optimizer.fast group 0 and optimizer.slow"
    assert "the outer one" in error.hint
    captured(model, lookahead)


def test_an_object_that_holds_several_optimizers_owns_what_they_own():
    model = two_layers()

    class Both(Silent):
        def __init__(self):
            self.optimizers = [SGD(layer.parameters(), lr=0.1) for layer in model]
            self.by_name = {"again": self.optimizers[0]}
            self.own_optimizer = Lookahead([nn.Parameter(torch.ones(1))], lr=0.1)

    both = Both()
    assert list(inner_optimizers(both)) == ["optimizers.0", "optimizers.1", "own_optimizer.optimizer"]
    error = refused("capture.owned_twice", model, {"both": both, "more": SGD([model[0].bias], lr=0.1)})
    assert error.found == "optimizer.more group 0 and optimizer.both"


class Around:
    """Around an optimizer, or around another object that is; it keeps it in a slot, called as the test likes."""

    __slots__ = ("base",)

    def __init__(self, base):
        self.base = base

    def step(self):
        self.base.step()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_an_optimizer_is_found_in_slots_and_under_several_objects_whatever_they_are_called():
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())
    assert inner_optimizers(Around(Around(optimizer))) == {"base.base": optimizer}


def test_state_that_the_outermost_of_several_objects_leaves_out_is_refused():
    model = nn.Linear(2, 2)
    optimizer = Around(Around(torch.optim.Adam(model.parameters())))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(UnsupportedState, match="leaves out") as caught:
        Training(model, optimizer).capture()
    assert caught.value.code == "capture.lost_state"


def test_an_optimizer_that_a_held_schedule_drives_is_not_its_holders():
    holder = Around(torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(2, 2).parameters()), 1))
    assert inner_optimizers(holder) == {}


def test_what_an_optimizer_steps_but_no_registered_module_holds_is_refused():
    model = two_layers()
    stray = nn.Parameter(torch.zeros(7))
    for optimizer in (
        SGD([*model.parameters(), stray], lr=0.1),
        OwnMomentum([*model.parameters(), stray], lr=0.1),
    ):
        error = refused("capture.unregistered_parameter", model, optimizer)
        assert error.where == "optimizer.optimizer group 0 parameter 4"
        assert "(7,)" in error.found


def test_half_precision_parameters_may_have_masters_that_are_stepped_for_them():
    model = two_layers(torch.bfloat16)
    masters = nn.ParameterList(nn.Parameter(parameter.detach().float()) for parameter in model.parameters())
    captured(model, SGD(masters, lr=0.1), components={"masters": masters})
    refused("capture.unregistered_parameter", model, SGD(masters, lr=0.1))
    some = nn.ParameterList(list(masters)[:3])
    error = refused("capture.unowned_parameter", model, SGD(some, lr=0.1), components={"masters": some})
    assert error.found == "1.bias"


def test_a_parameter_of_the_same_shape_is_no_master_of_one_in_fp32():
    model, other = two_layers(), two_layers()
    refused("capture.unowned_parameter", model, SGD(other.parameters(), lr=0.1), components={"other": other})
