"""A module record is what its contract says, or it is refused when it is made."""

import dataclasses

import pytest

from segue._record.contract import TrainableContract
from segue._record.sections import ComponentRecord, GroupRecord, ModuleRecord, OptimizerRecord
from segue.errors import InvalidRecord
from tests._store.records import module, tensor

MADE = module({"w": tensor(), "gone": None})


def test_a_tensor_that_the_contract_does_not_know_is_refused():
    with pytest.raises(InvalidRecord, match="other names"):
        ModuleRecord({**MADE.tensors, "more": tensor()}, {}, MADE.contract)
    with pytest.raises(InvalidRecord, match="other names"):
        ModuleRecord({"w": tensor()}, {}, MADE.contract)


@pytest.mark.parametrize(
    "odd", [tensor("int32"), tensor(shape=(3, 2)), tensor(strides=(1, 2)), tensor(device="cuda:0"), None]
)
def test_a_tensor_that_is_not_what_the_contract_says_is_refused(odd):
    with pytest.raises(InvalidRecord, match="contract says") as caught:
        ModuleRecord({**MADE.tensors, "w": odd}, {}, MADE.contract)
    assert caught.value.where == "w"


def test_a_tensor_where_the_contract_says_none_is_refused():
    with pytest.raises(InvalidRecord):
        ModuleRecord({**MADE.tensors, "gone": tensor()}, {}, MADE.contract)


def test_values_are_not_part_of_the_contract():
    other = dataclasses.replace(MADE, tensors={**MADE.tensors, "w": tensor(seed=5)})
    assert isinstance(other.contract, TrainableContract)


@pytest.mark.parametrize(
    "tree",
    [3, {}, {"shares": []}, {"shares": {"w": {}}}, {"shares": {1: {}}}, {"more": {}},
     {"shares": {"w": {"with": ["model", "w"], "offset": 0, "same": True}}},
     {"shares": {"w": {"with": ("model", 1), "offset": 0, "same": True}}}],
    ids=repr,
)  # fmt: skip
def test_a_module_that_shares_in_another_form_is_refused(tree):
    with pytest.raises(InvalidRecord, match="shares"):
        ComponentRecord("module", "torch.nn.Linear", MADE, tree)


def test_the_tree_of_any_other_component_is_its_own_affair():
    assert ComponentRecord("component", "Data", None, {"shares": 3}).tree == {"shares": 3}


@pytest.mark.parametrize("attributes", [[], "block_size", {1: 2}, {"a": 1, None: 2}])
def test_attributes_of_an_optimizer_are_a_dictionary_by_name(attributes):
    with pytest.raises(InvalidRecord, match="attributes"):
        OptimizerRecord("SGD", (), {}, {}, (), attributes)
    assert OptimizerRecord("SGD", (), {}, {}, (), {"block_size": 2}).attributes == {"block_size": 2}


@pytest.mark.parametrize("tree", [None, [], (), "lr", 1])
def test_options_and_state_of_an_optimizer_are_dictionaries(tree):
    for make in (
        lambda: GroupRecord((), tree, {}), lambda: GroupRecord((), {}, tree),
        lambda: OptimizerRecord("SGD", (), {}, tree, ()), lambda: OptimizerRecord("SGD", (), {"w": tree}, {}, ()),
    ):  # fmt: skip
        with pytest.raises(InvalidRecord, match="not a dictionary"):
            make()
