"""What modules of torch compute with besides tensors: recorded, compared, and set again where the run has moved it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from segue._capture.module import bind_module, capture_module, check_module, plan_module
from segue._capture.naming import walk
from segue._capture.settings import Settings, is_setting, settings_of
from segue._capture.writes import run_all


def bound(module):
    bind_module(module, "model")
    return module


def net(p=0.5, act=nn.ReLU, **norm):
    torch.manual_seed(0)
    return bound(nn.Sequential(nn.Linear(4, 4), nn.Dropout(p), act(), nn.BatchNorm1d(4, **norm)))


def codes(record, module):
    return [finding.code for finding in check_module(record, module, "model")]


def restore(record, module):
    run_all(plan_module(record, module, "model"))


EDITS = {
    "a probability": (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.5), ["p"]),
    "an epsilon": (lambda: nn.LayerNorm(4), lambda: nn.LayerNorm(4, eps=1e-6), ["eps"]),
    "a momentum": (lambda: nn.BatchNorm1d(4), lambda: nn.BatchNorm1d(4, momentum=0.2), ["momentum"]),
    "an average of all batches": (
        lambda: nn.BatchNorm1d(4), lambda: nn.BatchNorm1d(4, momentum=None), ["momentum"],
    ),
    "a slope": (lambda: nn.LeakyReLU(), lambda: nn.LeakyReLU(0.2), ["negative_slope"]),
    "an activation": (nn.ReLU, nn.GELU, ["class"]),
    "an approximation": (nn.GELU, lambda: nn.GELU("tanh"), ["approximate"]),
    "a stride": (lambda: nn.Conv1d(2, 2, 3), lambda: nn.Conv1d(2, 2, 3, stride=2), ["stride"]),
    "a padding": (
        lambda: nn.Conv1d(2, 2, 3, padding=1), lambda: nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"),
        ["padding_mode"],
    ),
    "heads": (lambda: nn.MultiheadAttention(4, 2), lambda: nn.MultiheadAttention(4, 4), ["num_heads"]),
    "a shape that no tensor tells": (
        lambda: nn.LayerNorm([2, 2], elementwise_affine=False), lambda: nn.LayerNorm(2, elementwise_affine=False),
        ["normalized_shape"],
    ),
    "a smoothing": (
        lambda: nn.CrossEntropyLoss(), lambda: nn.CrossEntropyLoss(label_smoothing=0.1), ["label_smoothing"],
    ),
    "the batch first": (lambda: nn.GRU(2, 2), lambda: nn.GRU(2, 2, batch_first=True), ["batch_first"]),
    "a function": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda: nn.TransformerEncoderLayer(4, 2, 8, activation="gelu"),
        ["activation"],
    ),
    "how often a spectral norm iterates": (
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=3),
        ["parametrizations.weight.0.n_power_iterations"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_told_by_its_place_and_the_module_is_not_touched(edit):
    then, now, names = EDITS[edit]
    record = capture_module(bound(nn.Sequential(nn.Identity(), then())), "model")
    module = bound(nn.Sequential(nn.Identity(), now()))
    before = copy.deepcopy(settings_of(module, "model"))
    findings = [item for item in check_module(record, module, "model") if ".setting." in item.code]
    assert [item.code for item in findings] == [f"model.setting.1.{name}" for name in names]
    assert all(item.admissible for item in findings)
    assert settings_of(module, "model") == before
    assert codes(record, bound(nn.Sequential(nn.Identity(), then()))) == []


def test_what_was_accepted_stays_as_the_program_has_it():
    record = capture_module(net(0.5), "model")
    module = net(0.3)
    restore(record, module)
    assert module[1].p == 0.3


def test_the_root_itself_has_settings():
    record = capture_module(bound(nn.Dropout(0.5)), "model")
    assert codes(record, bound(nn.Dropout(0.1))) == ["model.setting.p"]


def test_what_the_run_has_moved_is_set_again_in_an_unchanged_program():
    live = net()
    live[1].p, live[3].momentum = 0.1, 0.02
    record = capture_module(live, "model")
    assert record.settings["1"]["asked"] == {"p": 0.5}
    module = net()
    assert codes(record, module) == []
    restore(record, module)
    assert (module[1].p, module[3].momentum) == (0.1, 0.02)


def test_back_and_forth_in_one_process():
    live = net()
    first = capture_module(live, "model")
    live[1].p = 0.2
    second = capture_module(live, "model")
    for record, p in ((first, 0.5), (second, 0.2), (second, 0.2), (first, 0.5)):
        assert codes(record, live) == []
        restore(record, live)
        assert live[1].p == p


def test_a_program_that_asks_for_what_the_run_has_arrived_at_is_not_refused():
    live = net(0.5)
    live[1].p = 0.2
    record = capture_module(live, "model")
    module = net(0.2)
    assert codes(record, module) == []
    restore(record, module)
    assert module[1].p == 0.2
    assert codes(record, net(0.3)) == ["model.setting.1.p"]


def test_a_module_that_was_replaced_by_one_of_its_class_is_a_value_that_moved():
    live = net()
    live[1] = nn.Dropout(0.1)
    module = net()
    record = capture_module(live, "model")
    assert codes(record, module) == []
    restore(record, module)
    assert module[1].p == 0.1


def test_a_class_that_the_run_has_exchanged_is_told_since_it_is_not_rebuilt():
    live = net()
    live[2] = nn.GELU()
    assert codes(capture_module(live, "model"), net()) == ["model.setting.2.class"]


@pytest.mark.parametrize("value", [np.float64(0.25), np.float32(0.25), 0.25])
def test_a_number_of_numpy_comes_back_as_it_was(value):
    live = net()
    live[1].p = value
    record, module = capture_module(live, "model"), net()
    assert codes(record, module) == []
    restore(record, module)
    assert type(module[1].p) is type(value)
    assert module[1].p == value


def test_the_same_told_otherwise_is_no_difference():
    one = bound(nn.Sequential(nn.MaxPool2d([2, 2]), nn.Hardtanh(-1, 1), nn.Dropout(np.float64(0.5))))
    other = bound(nn.Sequential(nn.MaxPool2d((2, 2)), nn.Hardtanh(-1.0, 1.0), nn.Dropout(0.5)))
    assert codes(capture_module(one, "model"), other) == []


class MyNorm(nn.LayerNorm):
    def __init__(self, size, tag, eps=1e-5):
        super().__init__(size, eps)
        self.tag = tag


class Swish(nn.Module):
    def __init__(self, beta=1.0):
        super().__init__()
        self.beta = beta

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


def test_of_a_class_of_the_programs_only_what_torch_gave_it_counts():
    record = capture_module(bound(nn.Sequential(MyNorm(4, "a"), Swish(1.0))), "model")
    assert record.settings["0"]["class"] == "LayerNorm"
    assert "1" not in record.settings
    assert codes(record, bound(nn.Sequential(MyNorm(4, "b"), Swish(2.0)))) == []
    assert codes(record, bound(nn.Sequential(MyNorm(4, "a", eps=1e-3), Swish()))) == ["model.setting.0.eps"]


def test_a_class_of_torch_against_one_of_the_programs_is_told_in_both_directions():
    torchs, own = bound(nn.Sequential(nn.SiLU())), bound(nn.Sequential(Swish()))
    # A record of which no module is of torch has no settings to compare with.
    assert codes(capture_module(torchs, "model"), own) == ["model.setting.0.class"]
    torchs, own = (bound(nn.Sequential(nn.Linear(1, 1), act)) for act in (nn.SiLU(), Swish()))
    assert codes(capture_module(own, "model"), torchs) == ["model.setting.1.class"]


def test_what_a_program_hangs_on_a_module_of_torch_is_none_of_its_settings():
    one, other = net(), net()
    one[0].loss, one[1].name, one[1]._p = 0.3, "late", 7
    record = capture_module(one, "model")
    assert codes(record, other) == []
    assert record.settings["1"]["values"] == {"inplace": False, "p": 0.5}
    assert is_setting(one[1], "p")
    assert not any(is_setting(one[1], name) for name in ("name", "_p", "training", "forward", "nothing"))
    assert not is_setting(Swish(), "beta")


def test_sizes_are_told_by_shapes_and_not_again():
    found = settings_of(nn.Sequential(nn.Linear(2, 3), nn.Embedding(2, 3), nn.BatchNorm1d(3)), "model")
    assert found["0"] == {"class": "Linear"}
    assert {"num_embeddings", "embedding_dim", "num_features"}.isdisjoint(
        {**found["1"]["values"], **found["2"]["values"]}
    )


def test_containers_alone_have_none():
    assert settings_of(nn.Sequential(nn.ModuleList(), nn.ModuleDict(), nn.ParameterList()), "model") is None


def test_a_parametrized_class_is_what_it_was():
    one, other = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))
    assert settings_of(other, "model")["0"] == settings_of(one, "model")["0"]


def test_a_lazily_built_class_is_what_it_becomes():
    lazy, built = bound(nn.Sequential(nn.LazyLinear(3))), bound(nn.Sequential(nn.LazyLinear(3)))
    built(torch.ones(1, 2))
    assert type(built[0]) is nn.Linear
    assert settings_of(lazy, "model") == settings_of(built, "model") == {"0": {"class": "Linear"}}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_of_what_torchscript_made_of_a_module_nothing_is_compared():
    eager = net()
    scripted = bound(torch.jit.script(net()))
    for record, module in ((eager, scripted), (scripted, eager), (scripted, scripted)):
        found = [code for code in codes(capture_module(record, "model"), module) if ".setting." in code]
        assert found == []


def test_through_wrappers_the_names_and_the_memory_are_those_of_the_module():
    inner = net()
    record = capture_module(inner, "model")
    inner[1].p = 0.1
    wrapped = nn.DataParallel(inner)
    assert settings_of(wrapped, "model")["1"]["asked"] == {"p": 0.5}
    assert codes(record, wrapped) == []
    restore(record, wrapped)
    assert inner[1].p == 0.5


def test_compiled_or_not_is_no_difference():
    record = capture_module(net(), "model")
    compiled = torch.compile(net(), backend="eager")
    bind_module(compiled, "model")
    assert codes(record, compiled) == []


def averaged(decay=None, **options):
    if decay is not None:
        options["multi_avg_fn"] = get_ema_multi_avg_fn(decay)
    return bound(AveragedModel(nn.Linear(2, 2), **options))


def test_how_a_model_is_averaged_is_compared():
    record = capture_module(averaged(0.9), "model")
    assert codes(record, averaged(0.9)) == []
    assert codes(record, averaged(0.99)) == ["model.setting.multi_avg_fn"]
    assert codes(record, averaged()) == ["model.setting.multi_avg_fn"]
    assert codes(record, averaged(0.9, use_buffers=True)) == ["model.setting.use_buffers"]


def average_with(decay):
    return lambda old, new, count: decay * old + (1 - decay) * new


def test_a_function_of_the_programs_that_averages_is_compared_by_what_it_closes_over():
    record = capture_module(averaged(avg_fn=average_with(0.9)), "model")
    assert codes(record, averaged(avg_fn=average_with(0.9))) == []
    assert codes(record, averaged(avg_fn=average_with(0.8))) == ["model.setting.avg_fn"]


def test_a_record_without_settings_compares_nothing():
    module = net()
    settings = Settings(None, module, walk(module, "model"), "model")
    assert list(settings.findings({"", "0", "1"})) == []
    assert list(settings.plan()) == []
