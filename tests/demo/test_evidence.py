"""Each check passes where it should and fails where it should: what it looks for is put there."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import segue
from segue.demo.base import write_neighbour
from segue.demo.evidence import BLOCK_BYTES, Evidence, examine, search_base, try_over
from segue.errors import BaseMismatch, BaseWarning, ContractMismatch
from tests.demo.adapting import parts_of, small_run, trained


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path)


def training_of(parts, model_state):
    """Another training of the same model, which keeps another part of it."""
    return segue.Training(parts.model, parts.optimizer, parts.scheduler, model_state=model_state)


def searched(run, parts, final, others=()):
    return search_base(final, others, load_file(run.adapter.base), trained(parts.model))


def saved(record, path):
    segue.save(record, path)
    return path


def test_the_base_is_not_in_an_adapters_checkpoint_and_the_adapter_is(run, tmp_path):
    parts = parts_of(run)
    found = searched(run, parts, saved(parts.training.capture(), tmp_path / "final"))
    assert found.has_passed
    assert found.num_base_blocks_found == 0
    assert found.num_base_blocks == sum(
        tensor.nbytes // BLOCK_BYTES for tensor in load_file(run.adapter.base).values()
    )
    assert found.num_adapter_blocks_found == found.num_adapter_blocks > 0
    assert found.num_checkpoint_bytes == sum(path.stat().st_size for path in (tmp_path / "final").iterdir())


def test_the_base_is_found_in_a_checkpoint_of_the_whole_model(run, tmp_path):
    parts = parts_of(run)
    record = training_of(parts, segue.FullModel()).capture()
    found = searched(run, parts, saved(record, tmp_path / "final"))
    assert not found.has_passed
    assert found.num_base_blocks_found == found.num_base_blocks
    assert set(found.found_in) == load_file(run.adapter.base).keys()
    assert "embedding.weight" in found.names_unexpected
    assert found.names_missing == ()


@pytest.mark.parametrize("offset", [0, 1, 777])
def test_one_block_is_found_at_any_place_of_any_file_of_any_checkpoint(run, tmp_path, offset):
    parts = parts_of(run)
    final = saved(parts.training.capture(), tmp_path / "final")
    other = saved(parts.training.capture(), tmp_path / "other")
    assert searched(run, parts, final, [other]).has_passed
    weight = load_file(run.adapter.base)["blocks.0.mlp.0.weight"].view(-1).view(torch.uint8)
    block = bytes(weight[3 * BLOCK_BYTES : 4 * BLOCK_BYTES].tolist())
    (other / "hidden").write_bytes(b"x" * offset + block + b"x")
    found = searched(run, parts, final, [other])
    assert not found.has_passed
    assert (found.num_base_blocks_found, found.found_in) == (1, ("blocks.0.mlp.0.weight",))


def test_a_search_that_does_not_find_the_adapter_proves_nothing(run, tmp_path):
    parts = parts_of(run)
    final = saved(parts.training.capture(), tmp_path / "final")
    with torch.no_grad():
        trained(parts.model)["blocks.0.attention.project_in.up.weight"].normal_()
    found = searched(run, parts, final)
    assert 0 < found.num_adapter_blocks_found < found.num_adapter_blocks
    assert not found.has_passed


def test_a_tensor_that_is_kept_besides_is_told_though_its_bytes_are_not_the_bases(run, tmp_path):
    parts = parts_of(run)
    with torch.no_grad():
        parts.model.norm.weight.normal_()  # no more the base's, so it is state
    parts.model.norm.weight.requires_grad_(False)
    kept = training_of(parts, segue.TrainableOnly(base="named", keep="norm.weight"))
    found = searched(run, parts, saved(kept.capture(), tmp_path / "final"))
    assert (found.names_unexpected, found.num_base_blocks_found) == (("norm.weight",), 0)
    assert not found.has_passed


def test_a_tensor_of_the_adapter_that_is_missing_is_told(run, tmp_path):
    parts = parts_of(run)
    final = saved(parts.training.capture(), tmp_path / "final")
    adapter = {**trained(parts.model), "another": torch.zeros(2)}
    found = search_base(final, [], load_file(run.adapter.base), adapter)
    assert found.names_missing == ("another",)
    assert not found.has_passed


def neighbour(run, tmp_path):
    difference = write_neighbour(run.adapter.base, tmp_path / "other-base", run.seed)
    return replace(run, adapter=replace(run.adapter, base=str(tmp_path / "other-base"))), difference


def gone_on(run):
    """Parts of which everything that is trained has moved on."""
    parts = parts_of(run)
    for parameter in trained(parts.model).values():
        parameter.grad = torch.ones_like(parameter)
    parts.optimizer.step()
    parts.optimizer.zero_grad()
    return parts


def test_another_base_is_refused_and_nothing_changes(run, tmp_path):
    record = gone_on(run).training.capture()
    other, difference = neighbour(run, tmp_path)
    parts = parts_of(other)
    refusal = try_over(parts.training, parts.model, record, difference)
    assert refusal.has_passed
    assert (refusal.error, refusal.code) == ("BaseMismatch", "model.base")
    assert difference.rpartition(" ")[2] in refusal.message.replace("base.", "")


def test_another_base_that_the_caller_gave_the_same_name_is_accepted_and_that_fails(run, tmp_path):
    named = segue.TrainableOnly(base="a name")
    record = training_of(gone_on(run), named).capture()
    other, difference = neighbour(run, tmp_path)
    parts = parts_of(other)
    refusal = try_over(training_of(parts, named), parts.model, record, difference)
    assert (refusal.error, refusal.code, refusal.message) == (None, None, "")
    assert {"model", "optimizers"} <= set(refusal.changed)
    assert not refusal.has_passed


class Refusing:
    """A training that refuses in a way of its own."""

    def __init__(self, parts, error, spoilt=None):
        self.capture = parts.training.capture
        self._error, self._spoilt = error, spoilt

    def restore(self, record):
        if self._spoilt is not None:
            with torch.no_grad():
                self._spoilt.add_(1)
        raise self._error


def test_a_refusal_after_something_has_changed_fails(run):
    parts = parts_of(run)
    error = BaseMismatch("another base", code="model.base")
    kept = try_over(Refusing(parts, error), parts.model, None, "")
    assert kept.has_passed
    with pytest.warns(BaseWarning, match="norm.weight"):
        spoilt = try_over(Refusing(parts, error, parts.model.norm.weight), parts.model, None, "")
    assert "model norm.weight" in spoilt.changed
    assert not spoilt.has_passed


def test_a_refusal_for_another_reason_fails(run):
    parts = parts_of(run)
    error = ContractMismatch("another shape", code="model.shape")
    refusal = try_over(Refusing(parts, error), parts.model, None, "")
    assert refusal.error == "ContractMismatch"
    assert not refusal.has_passed


def test_the_runs_are_examined_and_the_evidence_comes_through_a_file_unchanged(run, tmp_path):
    parts = parts_of(run)
    saved(parts.training.capture(), tmp_path / "segue" / "final")
    saved(parts.training.capture(), tmp_path / "segue" / "checkpoints" / "ckpt-000000001")
    evidence = examine(run, tmp_path)
    assert evidence.search.has_passed
    assert evidence.search.num_checkpoints == 2
    assert evidence.refusal.has_passed
    evidence.write(tmp_path / "evidence")
    assert Evidence.read(tmp_path / "evidence") == evidence


def test_without_an_adapter_there_is_nothing_to_examine(run, tmp_path):
    with pytest.raises(ValueError, match="no base"):
        examine(replace(run, adapter=None), tmp_path)
