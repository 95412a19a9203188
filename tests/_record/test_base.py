"""The base that a record leaves out, as a value."""

import dataclasses

import pytest

from segue._record.base import BaseIdentity, BaseRecord, combined_digest
from segue._record.rename import renamed
from segue._record.sections import ModuleRecord, OpaqueOptimizerRecord
from segue.errors import InvalidRecord
from tests._store.records import third_version

DIGEST = "0123456789abcdef" * 2


def test_it_is_shown_by_its_digest_or_name():
    identity = BaseIdentity(DIGEST, {"a": DIGEST})
    assert str(identity) == DIGEST
    assert repr(identity) == f"BaseIdentity({DIGEST}, 1 tensors)"
    assert BaseRecord("digest", DIGEST, {}).shown == DIGEST[:12]
    assert BaseRecord("declared", "llama@1", {}).shown == "llama@1"


@pytest.mark.parametrize(
    ("source", "identity", "omitted"),
    [
        ("hearsay", "x", {}),
        ("declared", "", {}),
        ("declared", "x", {"a": DIGEST}),
        ("digest", DIGEST, {"a": None}),
        ("digest", DIGEST, {"a": DIGEST[:-1]}),
        ("digest", DIGEST, {"a": DIGEST[:-1] + "G"}),
        ("model_state", "x", {"a": DIGEST}),
    ],
)
def test_a_base_that_names_nothing_is_refused(source, identity, omitted):
    with pytest.raises(InvalidRecord) as caught:
        BaseRecord(source, identity, omitted)
    assert caught.value.code == "record.base"


def test_the_order_in_which_tensors_come_does_not_count():
    lines = [("b", "float32", [2], None, DIGEST), ("a", "float32", [], "Int8Tensor", DIGEST)]
    assert combined_digest(lines) == combined_digest(reversed(lines))
    assert combined_digest(lines) != combined_digest(lines[:1])


def test_a_rename_goes_through_base_configuration_and_other_optimizers():
    record = third_version(1)
    configured = dataclasses.replace(record.model, configuration={"": {"scale": 1.0}, "base": {"p": 0.5}})
    record = dataclasses.replace(record, model=configured)
    after = renamed(record, {"base": "tower", "adapter": "lora"})
    assert after.model.base.omitted == {"tower": DIGEST}
    assert after.model.configuration == {"": {"scale": 1.0}, "tower": {"p": 0.5}}
    assert after.opaque_optimizers["foreign"].groups == (("lora",), ())
    silent = dataclasses.replace(
        record,
        opaque_optimizers={"x": OpaqueOptimizerRecord(record.opaque_optimizers["foreign"].state, None)},
    )
    assert renamed(silent, {"base": "tower"}).opaque_optimizers["x"].groups is None


def test_what_is_kept_and_what_is_omitted_is_the_whole_model():
    model = third_version(1).model
    with pytest.raises(InvalidRecord, match="other names"):
        dataclasses.replace(model, base=None)
    with pytest.raises(InvalidRecord, match="other names"):
        dataclasses.replace(model, base=BaseRecord("digest", DIGEST, {"base": DIGEST, "moved": DIGEST}))
    with pytest.raises(InvalidRecord, match="not a dictionary"):
        dataclasses.replace(model, configuration=[])
    assert isinstance(model, ModuleRecord)


def test_an_optimizer_that_is_a_module_is_refused():
    record = third_version(1)
    module = dataclasses.replace(
        record.opaque_optimizers["foreign"].state, kind="module", module=record.model, tree=None
    )
    with pytest.raises(InvalidRecord, match="is a module"):
        OpaqueOptimizerRecord(module, None)
