"""An adapter is never put on another base, and never computes otherwise than when it was captured."""

import warnings

import pytest
import torch

import segue
from segue.errors import BaseMismatch, BaseWarning, ContractMismatch, MismatchError, UnsupportedState


def built(trainings, name="lora", base_seed=0, **changed):
    case = trainings.CASES[name]
    case = type(case)(**{**vars(case), "config": {**case.config, **changed}})
    return trainings.Run(case, base_seed)


def trained(trainings, name="lora", microbatches=4):
    trainings.seed(3)
    run = built(trainings, name)
    for number in range(microbatches):
        run.microbatch(number)
    return run


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def unchanged(model, before):
    after = model.state_dict()
    return before.keys() == after.keys() and all(
        torch.equal(tensor.reshape(-1).view(torch.uint8), after[name].reshape(-1).view(torch.uint8))
        for name, tensor in before.items()
    )


def codes(run, record):
    before = bits(run.model)
    with pytest.raises(MismatchError) as caught:
        run.training.restore(record)
    assert unchanged(run.model, before)
    return [finding.code for finding in caught.value.findings]


def test_another_base_is_refused(trainings):
    record = trained(trainings).training.capture()
    run = built(trainings, base_seed=1)
    with pytest.raises(BaseMismatch, match="another base"):
        run.training.check(record)
    assert codes(run, record) == ["model.base"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"lora_alpha": 6.000000000000001}, "model.configuration.scaling"),
        ({"lora_dropout": 0.10000000000000002}, "model.configuration.p"),
        ({"use_rslora": True}, "model.configuration.scaling"),
        ({"r": 5}, "model.shape.first.lora_A.default.weight"),
        ({"use_dora": True}, "model.extra.first.lora_magnitude_vector.default.weight"),
        (
            {"target_modules": ["first", "embed"]},
            "model.missing.second.lora_A.default.weight",
        ),
        ({"lora_bias": True}, "model.extra.first.lora_B.default.bias"),
    ],
)
def test_an_adapter_built_otherwise_is_refused(changed, code, trainings):
    record = trained(trainings).training.capture()
    changed = {**changed, **({"target_modules": ["first", "second"]} if "lora_bias" in changed else {})}
    assert code in codes(built(trainings, **changed), record)


def test_another_scale_can_be_accepted(trainings):
    record = trained(trainings).training.capture()
    run = built(trainings, lora_alpha=7)
    run.training.restore(record, accept=["model.configuration.scaling", "model.configuration.lora_alpha"])
    assert run.training.capture().lineage[-1]["accepted"] == [
        "model.configuration.lora_alpha",
        "model.configuration.scaling",
    ]


def test_another_active_adapter_is_refused(trainings):
    record = trained(trainings, "two-adapters", 6).training.capture()
    run = built(trainings, "two-adapters")
    assert "model.configuration._active_adapter" in codes(run, record)
    run.prepare(6)
    run.training.restore(record)


def test_disabled_adapters_are_told_from_active_ones(trainings):
    run = trained(trainings)
    record = run.training.capture()
    with run.model.disable_adapter():
        found = codes(run, record)
    assert "model.configuration._disable_adapters" in found
    run.training.restore(record)


def test_an_adapter_wrapped_twice_is_refused(trainings):
    record = trained(trainings).training.capture()
    once = built(trainings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = trainings.peft.LoraConfig(
            r=4, lora_alpha=6, lora_dropout=0.1, target_modules=["first", "second", "embed"]
        )
        model = trainings.peft.get_peft_model(once.model, config)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = segue.TrainableOnly(base=segue.base_identity(model))
    training = segue.Training(model, {"adamw": torch.optim.AdamW(parameters)}, model_state=state)
    with pytest.raises(ContractMismatch) as caught:
        training.check(record)
    assert any(finding.code.startswith("model.missing.") for finding in caught.value.findings)


def test_a_base_that_pissa_rewrites_is_told_from_the_one_before(trainings):
    case = trainings.CASES["pissa"]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = case.base().requires_grad_(False)
    before = segue.base_identity(base)
    model = trainings.peft.get_peft_model(
        base, trainings.peft.LoraConfig(r=4, target_modules=["first", "second"], init_lora_weights="pissa")
    )
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    with pytest.raises(BaseMismatch, match="rewritten since its identity was taken") as caught:
        segue.Training(model, optimizer, model_state=segue.TrainableOnly(base=before))
    assert caught.value.where == "first.base_layer.weight, second.base_layer.weight"
    after = segue.base_identity(model)
    assert after != before
    segue.Training(model, optimizer, model_state=segue.TrainableOnly(base=after)).capture()


def test_the_identity_is_the_same_before_and_after_an_adapter_that_leaves_the_base(trainings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = trainings.CASES["lora"].base().requires_grad_(False)
    assert segue.base_identity(base) == segue.base_identity(built(trainings).model)
    assert segue.base_identity(base) == segue.base_identity(built(trainings, modules_to_save=["head"]).model)


def test_lora_on_the_base_that_pissa_rewrote_is_refused(trainings):
    record = trained(trainings, "lora").training.capture()
    run = built(trainings, "lora", init_lora_weights="pissa", target_modules=["first", "second"])
    assert "model.base" in codes(run, record)


def test_merged_adapters_are_refused_at_capture(trainings):
    run = trained(trainings)
    run.model.merge_adapter()
    with pytest.raises(UnsupportedState, match="merged") as caught:
        run.training.capture()
    assert caught.value.code == "capture.merged_adapters"
    assert caught.value.where == "model embed"
    with pytest.raises(UnsupportedState, match="merged"):
        segue.base_identity(run.model)


def test_a_base_that_merging_and_unmerging_rounded_is_state(trainings):
    run = trained(trainings)
    before = {name: p.clone() for name, p in run.model.named_parameters()}
    run.model.merge_adapter()
    run.model.unmerge_adapter()
    rounded = {name for name, p in run.model.named_parameters() if not torch.equal(p, before[name])}
    assert rounded
    with pytest.warns(BaseWarning, match=r"no longer the base's, so [\d,]+ bytes more"):
        record = run.training.capture()
    run.training.capture()  # told once
    assert {name.removeprefix("base_model.model.") for name in rounded} <= record.model.tensors.keys()
    run_on = built(trainings)
    run_on.training.restore(record)
    assert unchanged(run_on.model, bits(run.model))


def test_an_identity_taken_after_merging_into_the_base_is_of_the_merged_one(trainings):
    run = trained(trainings)
    before = segue.base_identity(run.model)
    merged = run.model.merge_and_unload().requires_grad_(False)
    assert segue.base_identity(merged) != before


def test_the_quantized_base_is_never_copied_or_moved(trainings):
    from segue._capture.base import mark_of

    run = built(trainings, "int8-llama")
    frozen = {name: p for name, p in run.model.named_parameters() if not p.requires_grad}
    before = {name: (id(p), mark_of(p)) for name, p in frozen.items()}
    record = run.training.capture()
    run.microbatch(0)
    run.training.restore(record)
    frozen = {name: p for name, p in run.model.named_parameters() if not p.requires_grad}
    assert {name: (id(p), mark_of(p)) for name, p in frozen.items()} == before


def test_another_quantization_of_the_same_base_is_refused(trainings):
    record = trained(trainings, "int8-llama", 1).training.capture()
    assert "model.base" in codes(built(trainings, "llama"), record)


def test_with_the_full_model_captured_the_settings_of_an_adapter_are_compared_too(trainings):
    run, other = built(trainings), built(trainings, lora_dropout=0.2)
    record = segue.Training(run.model, run.optimizers, run.schedulers).capture()
    with pytest.raises(ContractMismatch) as caught:
        segue.Training(other.model, other.optimizers, other.schedulers).check(record)
    assert [finding.code for finding in caught.value.findings] == ["model.configuration.p"]


class Ranks:
    """What AdaLoRA ranks its ranks by, as in the guide."""

    def __init__(self, tuner):
        self.tuner = tuner

    def state_dict(self):
        ranks = self.tuner.rankallocator
        names = ("ipt", "exp_avg_ipt", "exp_avg_unc")
        return {**{name: getattr(ranks, name) for name in names}, "pattern": ranks.peft_config.rank_pattern}

    def load_state_dict(self, state):
        ranks = self.tuner.rankallocator
        ranks.peft_config.rank_pattern = state.pop("pattern")
        vars(ranks).update(state)


class Ranked:
    """AdaLoRA, which takes ranks away as it trains."""

    def __init__(self, peft, keeps):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            base = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        config = peft.AdaLoraConfig(
            init_r=4, target_r=1, tinit=1, tfinal=2, deltaT=1, total_step=6, target_modules=["0", "1"]
        )
        self.model = peft.get_peft_model(base, config)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=0.01)
        components = {"ranks": Ranks(self.model.base_model)} if keeps else None
        state = segue.TrainableOnly(base=segue.base_identity(self.model))
        self.training = segue.Training(self.model, self.optimizer, model_state=state, components=components)

    def step(self, number):
        self.model(torch.randn(3, 8)).square().mean().backward()
        self.optimizer.step()
        self.model.base_model.update_and_allocate(number)
        self.optimizer.zero_grad()


def test_ranks_that_nobody_keeps_are_refused(trainings):
    run = Ranked(trainings.peft, keeps=False)
    run.training.capture()  # nothing has been counted yet
    run.step(0)
    with pytest.raises(UnsupportedState, match="outside of parameters and buffers") as caught:
        run.training.capture()
    assert (caught.value.code, caught.value.where) == (
        "capture.hidden_state",
        "model base_model.rankallocator",
    )


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_ranks_that_a_component_keeps_are_taken_away_as_without_a_cut(cut, trainings):
    trainings.seed(5)
    whole = Ranked(trainings.peft, keeps=True)
    for number in range(7):
        if number == cut:
            record = whole.training.capture()
        whole.step(number)
    trainings.seed(6)
    continued = Ranked(trainings.peft, keeps=True)
    continued.training.restore(record)
    for number in range(cut, 7):
        continued.step(number)
    assert unchanged(continued.model, bits(whole.model))


def test_an_adapter_of_other_elements_is_refused(trainings):
    def sparse(seed):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            base = torch.nn.Sequential(torch.nn.Linear(8, 8))
        model = trainings.peft.get_peft_model(
            base, trainings.peft.ShiraConfig(r=1, target_modules=["0"], random_seed=seed)
        )
        state = segue.TrainableOnly(base=segue.base_identity(model))
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return segue.Training(model, torch.optim.SGD(parameters), model_state=state)

    record = sparse(1).capture()
    sparse(1).restore(record)
    with pytest.raises(ContractMismatch) as caught:
        sparse(2).check(record)
    assert [finding.code for finding in caught.value.findings] == ["model.configuration.shira_indices"]


def test_a_frozen_weight_that_a_forward_takes_off_and_puts_back_stands_where_it_stood(trainings):
    """peft's `target_parameters`: a parametrization for each forward, which changes the order of registration."""

    def low_rank():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            base = torch.nn.Sequential(torch.nn.Linear(8, 8))
        config = trainings.peft.LoraConfig(r=2, target_modules=[], target_parameters=["0.weight"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = trainings.peft.get_peft_model(base, config)
        state = segue.TrainableOnly(base=segue.base_identity(model))
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return model, segue.Training(model, torch.optim.SGD(parameters), model_state=state)

    model, training = low_rank()
    order = list(training.capture().model.contract.order)
    model(torch.ones(2, 8))
    record = training.capture()
    assert list(record.model.contract.order) != order
    continued, training = low_rank()
    training.restore(record)
    assert unchanged(continued, bits(model))


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.1), (0.1, 0.0)])
def test_no_dropout_is_told_from_some(before, after, trainings):
    """peft builds an `Identity` for a rate of 0."""
    record = built(trainings, lora_dropout=before).training.capture()
    told = codes(built(trainings, lora_dropout=after), record)
    assert "model.configuration.p" in told
    assert all(code.startswith("model.setting.") for code in told if code != "model.configuration.p")


def test_a_packed_base_is_known_by_codes_and_by_what_they_mean(trainings):
    record = trained(trainings, "nf4-llama", 1).training.capture()
    assert not any("base_layer" in name or "proj.weight" in name for name in record.model.tensors)
    run = built(trainings, "nf4-llama")
    weight = run.model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
    run.training.check(record)
    weight.quant_state.absmax[3] += 1  # a scale; the codes stay
    assert codes(run, record) == ["model.base"]
    assert codes(built(trainings, "nf4-llama", base_seed=1), record) == ["model.base"]
    case = trainings.CASES["nf4-llama"]
    fp4 = trainings.Run(type(case)(**{**vars(case), "base": lambda: trainings.nf4_llama("fp4")}))
    assert codes(fp4, record) == ["model.base"]


def test_a_packed_weight_can_be_left_out_and_not_captured(trainings):
    run = built(trainings, "nf4-llama")
    with pytest.raises(UnsupportedState, match="this tensor subclass") as caught:
        segue.Training(run.model, run.optimizers, run.schedulers).capture()
    assert "Params4bit" in caught.value.found


def test_what_is_unknown_beside_a_packed_weight_is_refused(trainings):
    run = built(trainings, "nf4-llama")
    weight = run.model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
    weight.quant_state.more = object()
    with pytest.raises(UnsupportedState, match="something unknown beside it") as caught:
        segue.base_identity(run.model)
    assert caught.value.where == "model model.layers.0.self_attn.q_proj.weight more"
