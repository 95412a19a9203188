"""What of a model is captured: the trainable part beside a named base, name filters, and objects of the caller's."""

import gc
import weakref

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import segue
from segue.errors import (
    BaseMismatch,
    ComponentMismatch,
    ContractMismatch,
    MismatchError,
    RestoreInterrupted,
    UnsupportedState,
)
from tests._session.adapted import (
    ADAPTERS,
    BASE,
    STATISTICS,
    Adapted,
    LowRank,
    bits,
    frozen_memory,
    make,
    step,
    trained,
)


def cut(tmp_path, at=3, **options):
    model, optimizer, training = make(**options)
    for number in range(at):
        step(model, optimizer, number)
    segue.save(training.capture({"at": at}), tmp_path / "ck")
    return model, optimizer, training, segue.load(tmp_path / "ck")


def test_the_trainable_part_and_statistics_are_kept_and_the_base_is_named(tmp_path):
    *_, record = cut(tmp_path)
    assert record.kind == "model_state"
    assert sorted(record.model.tensors) == sorted([*ADAPTERS, *STATISTICS])
    assert sorted(record.model.base.omitted) == sorted(BASE)
    assert sorted(load_file(tmp_path / "ck" / "model.safetensors")) == sorted([*ADAPTERS, *STATISTICS])


def test_behaviour_13_no_byte_of_the_base_is_in_the_checkpoint(tmp_path):
    model, *_ = cut(tmp_path)
    stored = b"".join(path.read_bytes() for path in sorted((tmp_path / "ck").iterdir()))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in BASE:
        raw = bytes(tensors[name].detach().contiguous().view(-1).view(torch.uint8).tolist())
        assert raw not in stored or not any(raw), name
    raw = bytes(model.first.A.detach().view(-1).view(torch.uint8).tolist())
    assert raw in stored


def test_it_goes_on_with_the_same_bits(tmp_path):
    model, optimizer, _, record = cut(tmp_path)
    at_the_cut = bits(model)
    for number in range(3, 8):  # in the middle of a window: a gradient is pending
        step(model, optimizer, number)
    other, another, training = make(seed=9)
    state = training.restore(record)
    assert bits(other) == at_the_cut
    for number in range(state["at"], 8):
        step(other, another, number)
    assert bits(other) == bits(model)


def test_behaviour_40_the_base_is_where_it_was_and_as_often_written(tmp_path):
    model, _, training, record = cut(tmp_path)
    before = frozen_memory(model)
    training.capture()
    training.check(record)
    training.restore(record)
    assert frozen_memory(model) == before


def test_the_base_is_not_held(tmp_path):
    model, optimizer, training, record = cut(tmp_path)
    weight = weakref.ref(model.first.base.weight)
    storage = torch.utils.weak.WeakIdRef(model.first.base.weight)
    identity = segue.base_identity(model)
    del model, optimizer, training
    gc.collect()
    assert weight() is None
    assert storage() is None
    assert identity.tensors.keys() == record.model.base.omitted.keys()


def test_behaviour_39_another_base_is_refused_and_every_bit_stays(tmp_path):
    *_, record = cut(tmp_path)
    model, _, training = make(base_seed=5)
    before = bits(model)
    with pytest.raises(BaseMismatch, match="another base") as caught:
        training.restore(record)
    assert caught.value.code == "model.base"
    assert "7 of 7 tensors" not in caught.value.where  # normalisation weights are ones everywhere
    assert "first.base.weight" in caught.value.where
    assert bits(model) == before


def test_one_bit_of_the_base_is_another_base(tmp_path):
    *_, record = cut(tmp_path)
    torch.manual_seed(0)
    model = Adapted()
    with torch.no_grad():
        model.second.base.weight.view(torch.int32)[3, 5] ^= 1
    optimizer = torch.optim.AdamW(trained(model), lr=0.01)
    state = segue.TrainableOnly(base=segue.base_identity(model))
    with pytest.raises(BaseMismatch) as caught:
        segue.Training(model, optimizer, model_state=state).check(record)
    assert caught.value.where == "model: 1 of 7 tensors: second.base.weight"


def test_a_base_rewritten_since_its_identity_was_taken_is_refused(tmp_path):
    torch.manual_seed(0)
    model = Adapted()
    identity = segue.base_identity(model)
    with torch.no_grad():
        model.first.base.weight.mul_(2)
    with pytest.raises(BaseMismatch, match="rewritten since its identity was taken") as caught:
        segue.Training(model, torch.optim.SGD(trained(model)), model_state=segue.TrainableOnly(base=identity))
    assert caught.value.where == "first.base.weight"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"scale": 2.0000000000000004}, "model.configuration.scale"),
        ({"dropout": 0.10000000000000002}, "model.configuration.p"),
    ],
)
def test_behaviour_96_a_scale_or_dropout_that_differs_in_its_last_bit_is_refused(changed, code, tmp_path):
    *_, record = cut(tmp_path)
    model, _, training = make(**changed)
    before = bits(model)
    with pytest.raises(ContractMismatch, match="another setting") as caught:
        training.restore(record)
    assert [finding.code for finding in caught.value.findings] == [code]
    assert bits(model) == before
    training.restore(record, accept=[code])
    assert training.capture().lineage[-1]["accepted"] == [code]


def test_another_rank_is_refused(tmp_path):
    *_, record = cut(tmp_path)
    with pytest.raises(ContractMismatch, match="the shape differs") as caught:
        make(rank=3)[2].check(record)
    assert caught.value.code == "model.shape.first.A"


@pytest.mark.parametrize("base", ["", "  ", 7, None])
def test_behaviour_96_a_base_without_a_name_is_refused(base):
    with pytest.raises(UnsupportedState, match="must be named") as caught:
        segue.TrainableOnly(base=base)
    assert caught.value.code == "model_state.base"


def test_a_base_that_the_caller_names_is_compared_as_text(tmp_path):
    model, _, _, record = cut(tmp_path, base="llama@1")
    assert record.model.base.source == "declared"
    assert sorted(record.model.base.omitted) == sorted(BASE)
    other, _, training = make(seed=4, base="llama@1")
    training.restore(record)
    assert bits(other) == bits(model)
    with pytest.raises(BaseMismatch) as caught:
        make(base="llama@2")[2].check(record)
    assert (caught.value.expected, caught.value.found) == ("'llama@1'", "'llama@2'")
    with pytest.raises(BaseMismatch):
        make()[2].check(record)  # by content: it can't be compared with a name


def test_behaviour_97_training_goes_on_and_the_record_stays(tmp_path):
    model, optimizer, training = make()
    record = training.capture()
    before = bits(model)
    step(model, optimizer, 1)
    step(model, optimizer, 3)
    assert bits(model) != before
    training.restore(record)
    assert bits(model) == before


@pytest.mark.parametrize("base", [None, "named"])
def test_a_buffer_of_the_base_that_training_changes_is_state(base, tmp_path):
    model, _, training = make(base=base)
    with torch.no_grad():
        model.shift.add_(1)
    record = training.capture()
    assert "shift" in record.model.tensors
    other, _, continued = make(seed=3, base=base)
    continued.restore(record)
    assert bits(other) == bits(model)
    # And is still, in the next checkpoint of the run that went on.
    assert "shift" in continued.capture().model.tensors


def test_a_named_base_that_was_written_since_is_refused_where_the_record_left_it_out():
    model, _, training = make(base="llama@1")
    record = training.capture()
    training.restore(record)
    with torch.no_grad():
        model.shift.add_(1)
    later = training.capture()
    before = bits(model)
    with pytest.raises(BaseMismatch, match="written since it was named") as caught:
        training.restore(record)
    assert caught.value.where == f"model: 1 of {len(BASE)} tensors: shift"
    assert bits(model) == before
    training.restore(later)  # which has it


@pytest.mark.parametrize("base", [None, "named"])
def test_what_was_trained_and_is_frozen_since_is_state(base):
    model, optimizer, training = make(base=base)
    step(model, optimizer, 1)
    model.first.A.requires_grad_(False)
    model.first.A.grad = None
    record = training.capture()
    assert "first.A" in record.model.tensors
    other, _, continued = make(seed=3, base=base)
    continued.restore(record)
    assert bits(other) == bits(model)
    assert not other.first.A.requires_grad


def test_what_lies_in_one_memory_with_something_trained_is_state():
    torch.manual_seed(0)
    model = Adapted()
    model.register_buffer("view", model.first.A.detach()[0])
    training = segue.Training(
        model,
        torch.optim.SGD(trained(model), lr=0.1),
        model_state=segue.TrainableOnly(base=segue.base_identity(model)),
    )
    assert "view" in training.capture().model.tensors


def test_a_frozen_tower_is_left_out_by_name_and_the_rest_is_kept():
    torch.manual_seed(0)
    model = nn.ModuleDict({"vision": nn.Linear(4, 4), "text": nn.Linear(4, 4)})
    model.requires_grad_(False)
    model["text"].weight.requires_grad_(True)

    def kept(**filters):
        state = segue.TrainableOnly(base=segue.base_identity(model), **filters)
        optimizer = torch.optim.SGD([model["text"].weight], lr=0.1)
        return sorted(segue.Training(model, optimizer, model_state=state).capture().model.tensors)

    assert kept() == ["text.weight"]
    assert kept(omit="vision.*") == ["text.bias", "text.weight"]
    assert kept(omit=["vision.weight"]) == ["text.bias", "text.weight", "vision.bias"]
    assert kept(keep="*.bias") == ["text.bias", "text.weight", "vision.bias"]
    assert kept(keep=lambda name: name.startswith("text")) == ["text.bias", "text.weight"]
    assert kept(trainable="text.*") == ["text.bias", "text.weight"]
    with pytest.raises(UnsupportedState, match="not among the trained ones") as caught:
        kept(trainable="vision.*")
    assert (caught.value.code, caught.value.where) == ("capture.outside_trainable", "text.weight")


@pytest.mark.parametrize("name", ["trainable", "omit", "keep"])
@pytest.mark.parametrize("value", [3, [1], {"a": 2}.values()])
def test_a_filter_that_is_none_is_refused(name, value):
    with pytest.raises(UnsupportedState) as caught:
        segue.TrainableOnly(base="named", **{name: value})
    assert caught.value.code == "model_state.filter"


def test_the_whole_model_and_a_part_of_it_are_told_apart():
    model, optimizer, training = make()
    whole = segue.Training(model, optimizer)
    for record, other in ((whole.capture(), training), (training.capture(), whole)):
        with pytest.raises(ContractMismatch) as caught:
            other.check(record)
        assert [finding.code for finding in caught.value.findings] == ["model.kind"]
        other.restore(record, accept=["model.kind"])


def test_a_part_goes_into_a_whole_only_over_the_same_base(tmp_path):
    *_, record = cut(tmp_path)
    model, optimizer, _ = make(base_seed=6)
    with pytest.raises(BaseMismatch):
        segue.Training(model, optimizer).check(record, accept=["model.kind"])
    declared = make(base="named")[2].capture()
    with pytest.raises(MismatchError, match="can't be accepted"):
        segue.Training(model, optimizer).check(declared, accept=["model.kind"])


def test_a_renamed_layer_keeps_its_place_in_the_base(tmp_path):
    *_, record = cut(tmp_path)

    class Renamed(nn.Module):
        def __init__(self, before):
            super().__init__()
            self.entry, self.norm, self.second = before.first, before.norm, before.second
            self.register_buffer("shift", before.shift)

        def forward(self, x):
            return self.second(torch.tanh(self.norm(self.entry(x)))) + self.shift

    torch.manual_seed(0)
    model = Renamed(Adapted())
    state = segue.TrainableOnly(base=segue.base_identity(model))
    training = segue.Training(model, torch.optim.AdamW(trained(model), lr=0.01), model_state=state)
    training.restore(record, rename={"first": "entry"})
    assert "entry.A" in training.capture().model.tensors


class Archive:
    """Model state of the caller's: the adapter as one flat tensor."""

    def __init__(self, model, complaint=None, refuses=False):
        self.model, self.complaint, self.refuses = model, complaint, refuses
        self.calls = []

    def capture(self):
        return {"flat": torch.cat([parameter.detach().flatten() for parameter in trained(self.model)])}

    def check(self, state):
        self.calls.append("check")
        return [self.complaint] if self.complaint else []

    def restore(self, state):
        self.calls.append("restore")
        offset = 0
        for parameter in trained(self.model):
            part = state["flat"][offset : offset + parameter.numel()]
            offset += parameter.numel()
            with torch.no_grad():
                parameter.copy_(part.view_as(parameter))
        if self.refuses and self.calls.count("restore") == 1:
            raise ValueError("not this one")


def archived(seed=0, components=None, **options):
    torch.manual_seed(0)
    model = Adapted()
    torch.manual_seed(seed)
    for parameter in trained(model):
        nn.init.normal_(parameter)
    archive = Archive(model, **options)
    optimizer = torch.optim.AdamW(trained(model), lr=0.01)
    training = segue.Training(model, optimizer, model_state=archive, components=components)
    return model, optimizer, training, archive


def test_an_object_of_the_callers_captures_and_restores_the_model(tmp_path):
    model, optimizer, training, _ = archived(1)
    model.norm.eval()  # or its statistics, which this archive does not keep, would move
    for number in range(3):
        step(model, optimizer, number)
    segue.save(training.capture(), tmp_path / "ck")
    record = segue.load(tmp_path / "ck")
    assert record.kind == "model_state"
    assert record.model.tensors == {}
    assert list(load_file(tmp_path / "ck" / "model.safetensors")) == []
    for number in range(3, 7):
        step(model, optimizer, number)
    other, another, continued, archive = archived(2)
    continued.restore(record)
    assert archive.calls.count("restore") == 1
    assert not other.norm.training
    for number in range(3, 7):
        step(other, another, number)
    assert bits(other) == bits(model)


def test_behaviour_23_frozen_parameters_are_the_duty_of_who_restores_the_model():
    *_, training, _ = archived()
    record = training.capture()
    torch.manual_seed(0)
    model = Adapted()
    model.norm = nn.BatchNorm1d(8, affine=False)
    model.first.base = nn.Linear(8, 8, bias=False).requires_grad_(False)
    optimizer = torch.optim.AdamW(trained(model), lr=0.01)
    segue.Training(model, optimizer, model_state=Archive(model)).check(record)


def test_the_contract_of_the_trainable_parameters_is_compared():
    *_, training, _ = archived()
    record = training.capture()
    model, _, other, _ = archived()
    model.first.A.requires_grad_(False)
    with pytest.raises(ContractMismatch) as caught:
        other.check(record)
    assert "model.missing.first.A" in [finding.code for finding in caught.value.findings]


def test_a_callers_object_may_refuse_and_nothing_has_changed():
    *_, training, _ = archived(1)
    record = training.capture()
    model, _, other, archive = archived(2, complaint="of another shape")
    before = bits(model)
    with pytest.raises(ComponentMismatch, match="of another shape") as caught:
        other.restore(record)
    assert caught.value.code == "model_state.check"
    assert archive.calls == ["check"]
    assert bits(model) == before


def test_a_callers_object_that_fails_after_all_is_put_back():
    *_, training, _ = archived(1)
    record = training.capture()
    model, _, other, _ = archived(2, refuses=True)
    before = bits(model)
    with pytest.raises(ComponentMismatch, match="not this one") as caught:
        other.restore(record)
    assert caught.value.code == "model_state.refused"
    assert bits(model) == before
    other.capture()  # and the training is whole


class Replacing(Archive):
    """Puts a new parameter where one stood, or a new module."""

    what = "a parameter"

    def restore(self, state):
        if self.what == "a module":
            self.model.first = LowRank(self.model.first.base)
        else:
            self.model.first.A = nn.Parameter(self.model.first.A.detach().clone())
        super().restore(state)


@pytest.mark.parametrize("what", ["a parameter", "a module"])
def test_a_callers_object_that_puts_other_tensors_into_the_model_is_told(what):
    model, optimizer, *_ = archived(1)
    archive = Replacing(model)
    archive.what = what
    training = segue.Training(model, optimizer, model_state=archive)
    record = training.capture()
    with pytest.raises(RestoreInterrupted, match="other tensors into the model") as caught:
        training.restore(record)
    assert caught.value.code == "restore.replaced"
    assert caught.value.where == ("first.A, first.B" if what == "a module" else "first.A")
    with pytest.raises(RestoreInterrupted):
        training.capture()


def test_a_component_that_puts_other_tensors_into_the_model_is_told():
    class Weights:
        def __init__(self, model):
            self.model = model

        def state_dict(self):
            return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

        def load_state_dict(self, state):
            self.model.load_state_dict(state, assign=True)

    model = nn.Linear(2, 2)
    training = segue.Training(
        model, torch.optim.SGD(model.parameters()), components={"weights": Weights(model)}
    )
    record = training.capture()
    with pytest.raises(RestoreInterrupted, match="other tensors into the model") as caught:
        training.restore(record)
    assert caught.value.where == "weight, bias"


def test_a_component_that_refuses_later_puts_the_callers_model_back():
    class Fussy:
        def __init__(self):
            self.value = 0

        def capture(self):
            return self.value

        def check(self, state):
            return []

        def restore(self, state):
            if state:
                raise RuntimeError("no")

    fussy = Fussy()
    fussy.value = 1
    record = archived(1, components={"fussy": fussy})[2].capture()
    model, _, other, _ = archived(2, components={"fussy": Fussy()})
    before = bits(model)
    with pytest.raises(ComponentMismatch, match="no"):
        other.restore(record)
    assert bits(model) == before


def test_whole_part_and_callers_model_are_told_apart():
    whole = segue.Training(*make()[:2]).capture()
    *_, training, _ = archived()
    with pytest.raises(ContractMismatch) as caught:
        training.check(whole)
    assert caught.value.code == "model.kind"
    record = training.capture()
    with pytest.raises(MismatchError) as caught:
        segue.Training(*make()[:2]).check(record)
    assert "model.kind" in [finding.code for finding in caught.value.findings]
    with pytest.raises(MismatchError) as caught:
        make()[2].check(record)
    assert "model.kind" in [finding.code for finding in caught.value.findings]


@pytest.mark.parametrize("state", [object(), Archive, "trainable", segue.TrainableOnly])
def test_what_says_nothing_of_the_model_is_refused(state):
    model, optimizer, _ = make()
    with pytest.raises(UnsupportedState) as caught:
        segue.Training(model, optimizer, model_state=state)
    assert caught.value.code == "model_state.kind"


def test_the_streams_are_captured_after_an_object_of_the_callers_that_draws():
    class Drawing(Archive):
        def capture(self):
            torch.rand(3)
            return super().capture()

    torch.manual_seed(0)
    model = Adapted()
    optimizer = torch.optim.SGD(trained(model), lr=0.1)
    training = segue.Training(model, optimizer, model_state=Drawing(model))
    record = training.capture()
    expected = torch.rand(4)
    training.restore(record)
    assert torch.equal(torch.rand(4), expected)
