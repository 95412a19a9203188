"""A record as a whole: sections, size, and the same value placed elsewhere."""

import pytest
import torch

from segue._record.composite import blobs
from segue._record.diff import diff
from segue._record.tensors import CapturedTensor
from segue._record.training import OPTIONAL_SECTIONS, SECTIONS, TrainingRecord
from segue._record.tree import same
from segue.errors import InvalidRecord
from tests._store.records import MANY_KINDS, record


def test_every_field_that_is_used_is_a_section():
    assert tuple(record().sections()) == tuple(name for name in SECTIONS if name not in OPTIONAL_SECTIONS)
    used = record(model_state=1, groups=2, precision="half").sections()
    assert {name: used[name] for name in ("model_state", "groups", "precision")} == {
        "model_state": 1, "groups": 2, "precision": "half",
    }  # fmt: skip


def test_a_missing_or_unknown_section_is_refused():
    sections = record().sections()
    with pytest.raises(InvalidRecord):
        TrainingRecord.from_sections({**sections, "more": 1})
    sections.pop("streams")
    with pytest.raises(InvalidRecord):
        TrainingRecord.from_sections(sections)


def test_the_state_is_handed_out_as_new_values_each_time():
    made = record(caller_state={"log": [1]})
    made.state["log"].append(2)
    assert made.state == {"log": [1]}


def test_placing_a_record_elsewhere_changes_places_only():
    made = record(caller_state=MANY_KINDS)
    placed = made.with_device("cuda:0")
    tensors = [blob for blob in blobs(placed.sections()) if isinstance(blob, CapturedTensor)]
    assert {item.device for item in tensors} == {"cuda:0"}
    assert {spec.device for spec in placed.model.contract.tensors.values() if spec is not None} == {"cuda:0"}
    assert {item.path.rpartition("/")[2] for item in diff(made, placed).differences} == {"device"}
    assert same(placed.caller_state["counter"], MANY_KINDS["counter"])
    assert {blob.device for blob in blobs(made.sections()) if isinstance(blob, CapturedTensor)} == {"cpu"}


def test_its_size_is_that_of_its_tensors_and_arrays():
    made = record()
    assert made.num_bytes == sum(blob.num_bytes for blob in blobs(made.sections())) > 0


def test_verifying_reads_every_blob():
    seen = []

    class Source:
        num_bytes = 4

        def __init__(self, name):
            self.name = name

        def read_into(self, target):
            raise AssertionError("not read")

        def verify(self):
            seen.append(self.name)

    state = {name: CapturedTensor(torch.uint8, (4,), (1,), "cpu", Source(name)) for name in ("a", "b")}
    record(caller_state=state).verify()
    assert seen == ["a", "b"]


def test_a_record_shows_itself_in_one_line():
    assert repr(record(3)) == (
        "TrainingRecord(kind='full', step=3, microbatch=24, 4 tensors of the model, optimizers ['optimizer'])"
    )
