"""Every way in which two models can differ is told with its own code, and only the order can be accepted."""

import dataclasses

import pytest

from segue._record.contract import Sharing, TensorSpec, TrainableContract, moved
from segue._record.parts import PartSpec, PartsSpec
from segue.errors import ContractMismatch, InvalidRecord

SPEC = TensorSpec("parameter", "float32", (4, 3), (3, 1), "cpu", True, None)
BUFFER = dataclasses.replace(SPEC, kind="buffer", shape=(3,), strides=(1,), requires_grad=False)


def contract(tensors, sharing=(), order=None):
    names = [name for name, spec in tensors.items() if spec is not None and spec.kind == "parameter"]
    return TrainableContract(dict(sorted(tensors.items())), tuple(sharing), tuple(order or names))


def differences(before, after):
    return list(before.differences(after, "model"))


def codes(before, after):
    return [finding.code for finding in differences(before, after)]


BASE = contract({"w": SPEC, "mean": BUFFER})


def changed(name="w", **fields):
    tensors = dict(BASE.tensors)
    tensors[name] = dataclasses.replace(tensors[name], **fields)
    return contract(tensors)


def test_equal_contracts_have_no_differences():
    assert differences(BASE, contract({"mean": BUFFER, "w": SPEC})) == []


@pytest.mark.parametrize(
    ("fields", "code", "what"),
    [
        ({"shape": (3, 4), "strides": (4, 1)}, "model.shape.w", "the shape differs"),
        ({"dtype": "bfloat16"}, "model.dtype.w", "nothing is ever cast"),
        ({"strides": (1, 4)}, "model.strides.w", "memory layout"),
        ({"requires_grad": False}, "model.requires_grad.w", "newly frozen"),
        ({"grad_dtype": "float32"}, "model.grad_dtype.w", "its gradient"),
        ({"kind": "buffer"}, "model.kind.w", "registered otherwise"),
    ],
)
def test_each_aspect_has_its_own_code(fields, code, what):
    [finding] = differences(BASE, changed(**fields))
    assert finding.code == code
    assert what in finding.what
    assert finding.where == "model w"
    assert finding.error is ContractMismatch
    assert not finding.admissible


def test_newly_trainable_is_not_newly_frozen():
    [finding] = differences(changed(requires_grad=False), BASE)
    assert finding.what == "newly trainable"


def test_strides_of_another_shape_are_not_told_beside_it():
    assert codes(BASE, changed(shape=(12,), strides=(1,))) == ["model.shape.w"]


def test_a_buffer_that_became_persistent_is_registered_otherwise():
    assert codes(BASE, changed("mean", kind="transient")) == ["model.kind.mean"]


def test_missing_and_extra_tensors_are_each_named():
    more = contract({**BASE.tensors, "bias": dataclasses.replace(SPEC, shape=(4,), strides=(1,))})
    assert codes(more, BASE) == ["model.missing.bias"]
    assert codes(BASE, more) == ["model.extra.bias"]
    [finding] = differences(more, BASE)
    assert (finding.expected, finding.found) == ("float32 (4,)", "absent")


def test_a_renamed_tensor_is_recognised_and_the_rename_is_printed():
    missing, extra = differences(BASE, contract({"weight": SPEC, "mean": BUFFER}))
    assert (missing.code, extra.code) == ("model.missing.w", "model.extra.weight")
    assert 'rename={"w": "weight"}' in missing.hint


def test_a_tensor_that_is_an_alias_on_the_other_side_is_told_so():
    tied = contract({"w": SPEC}, [Sharing({"head": 0, "w": 0}, tied=True)])
    untied = contract({"w": SPEC, "head": SPEC})
    assert codes(untied, tied) == ["model.missing.head", "model.tied.head"]
    assert codes(tied, untied) == ["model.extra.head", "model.tied.head"]
    assert "alias of head" in differences(untied, tied)[0].hint
    assert [f.expected for f in differences(tied, untied)][1] == "one tensor"


def test_views_of_one_storage_are_told_from_ties_and_from_other_offsets():
    apart = contract({"a": SPEC, "b": SPEC})
    views = contract({"a": SPEC, "b": SPEC}, [Sharing({"a": 0, "b": 48}, tied=False)])
    moved_views = contract({"a": SPEC, "b": SPEC}, [Sharing({"a": 0, "b": 64}, tied=False)])
    assert codes(views, apart) == codes(apart, views) == codes(views, moved_views) == ["model.tied.a"]
    [finding] = differences(views, moved_views)
    assert "offsets" in finding.expected


def test_a_buffer_that_is_none_on_one_side_only_is_told():
    without = contract({"w": SPEC, "mean": None})
    assert codes(BASE, without) == codes(without, BASE) == ["model.none.mean"]
    assert codes(without, without) == []
    assert codes(without, contract({"w": SPEC})) == ["model.missing.mean"]


def test_another_order_names_what_moved_and_can_be_accepted():
    before = contract({"a": SPEC, "b": SPEC, "c": SPEC}, order=("a", "b", "c"))
    after = contract({"a": SPEC, "b": SPEC, "c": SPEC}, order=("a", "c", "b"))
    [finding] = differences(before, after)
    assert finding.code == "model.order"
    assert finding.admissible
    assert finding.where == "model c, b"


@pytest.mark.parametrize(("trained_then", "trained_now"), [(False, False), (True, False), (False, True)])
def test_the_order_of_what_is_not_trained_does_not_matter(trained_then, trained_now):
    def with_last(requires_grad, order):
        frozen = dataclasses.replace(SPEC, requires_grad=False)
        last = dataclasses.replace(SPEC, requires_grad=requires_grad)
        return contract({"a": SPEC, "b": frozen, "c": frozen, "d": last}, order=order)

    before = with_last(trained_then, ("a", "b", "c", "d"))
    assert "model.order" not in codes(before, with_last(trained_now, ("a", "c", "b", "d")))
    assert ("model.order" in codes(before, with_last(trained_now, ("d", "b", "c", "a")))) == (
        trained_then or trained_now
    )


def test_the_order_is_not_told_where_the_names_differ_anyway():
    assert codes(contract({"a": SPEC}), contract({"b": SPEC})) == ["model.missing.a", "model.extra.b"]


def test_at_most_five_moved_names_are_listed():
    names = [f"n{index}" for index in range(9)]
    assert moved(names, names) == ""
    assert moved(names, names[1:] + names[:1]).endswith("n5 and 4 more")


def test_only_distinct_trainable_parameters_are_trainable():
    tensors = {
        "b": SPEC,
        "a": SPEC,
        "frozen": dataclasses.replace(SPEC, requires_grad=False),
        "mean": BUFFER,
        "none": None,
    }
    assert contract(tensors).trainable == ["a", "b"]


def test_all_differences_are_told_together_by_name():
    after = contract({"w": dataclasses.replace(SPEC, dtype="float64", requires_grad=False), "other": BUFFER})
    assert codes(BASE, after) == [
        "model.missing.mean", "model.extra.other", "model.dtype.w", "model.requires_grad.w",
    ]  # fmt: skip


def test_of_several_groups_only_those_that_differ_are_told():
    same = Sharing({"a": 0, "b": 0}, tied=True)
    before = contract({"a": SPEC, "c": SPEC, "d": SPEC}, [same, Sharing({"c": 0, "d": 8}, tied=False)])
    after = contract({"a": SPEC, "c": SPEC, "d": SPEC}, [same, Sharing({"c": 0, "d": 9}, tied=False)])
    assert codes(before, after) == ["model.tied.c"]


def test_a_tensor_of_a_subclass_is_told_with_its_class():
    parts = PartsSpec("some.library.Packed", {"dict": {}}, {"codes": PartSpec("uint8", (2,), (1,))})
    packed = contract({"w": dataclasses.replace(SPEC, parts=parts)})
    assert differences(packed, contract({}))[0].expected == f"{SPEC.dtype} {SPEC.shape} in a Packed"


def test_parts_in_another_order_are_another_tensor():
    def packed(*names):
        parts = {name: PartSpec("uint8", (2,), (1,)) for name in names}
        return contract(
            {"w": dataclasses.replace(SPEC, parts=PartsSpec("some.library.Packed", {"dict": {}}, parts))}
        )

    [finding] = differences(packed("codes", "scale"), packed("scale", "codes"))
    assert (finding.code, finding.expected, finding.found) == (
        "model.order.w", ["codes", "scale"], ["scale", "codes"],
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(-1,), (2**57, 2), (0, 2**58), (2**70,)])
def test_a_shape_that_no_tensor_has_is_refused(shape):
    with pytest.raises(InvalidRecord, match="no tensor has this shape"):
        dataclasses.replace(SPEC, shape=shape)
    dataclasses.replace(SPEC, shape=(0, 2**57))


def test_a_rename_hint_names_the_twin_that_is_called_most_alike():
    def contract(adapter):
        names = [f"layers.{layer}.q.lora_A.{adapter}.weight" for layer in range(3)]
        spec = TensorSpec("parameter", "float32", (2, 2), (2, 1), "cpu", True, None)
        return TrainableContract(dict.fromkeys(names, spec), (), tuple(names))

    hints = [
        item.hint
        for item in contract("default").differences(contract("mine"), "model")
        if item.code.startswith("model.missing")
    ]
    assert hints == [
        f'was it renamed? then resume(rename={{"layers.{layer}.q.lora_A.default": "layers.{layer}.q.lora_A.mine"}}) tells so'
        for layer in range(3)
    ]
