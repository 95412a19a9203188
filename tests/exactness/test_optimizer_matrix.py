"""Every optimizer of torch, with every option: cut and continued in a new process, it ends in the same bits.

One process trains each configuration without segue, noting every bit, then once more, saving at every cut. Another,
under other seeds, builds each anew, restores it from disk and goes on.
"""

import itertools

import pytest
import torch

from tests.exactness.optimizer_nets import net_for
from tests.exactness.optimizer_runs import DTYPES, Case, Plan
from tests.exactness.optimizer_table import (
    CLASSES,
    CONFIGURATIONS,
    SAMPLE,
    implementations,
    options_in,
    refusal,
)
from tests.exactness.optimizer_verdicts import (
    carried_out,
    carried_out_afresh,
    differing,
    not_exact,
    refusal_of,
    report,
    verdicts,
)

ENOUGH = 278


def cases(names):
    return tuple(itertools.starmap(Case, itertools.product(names, DTYPES)))


def of_class(class_name):
    return [made for made in CONFIGURATIONS.values() if made.class_name == class_name]


def test_no_class_of_torch_is_missing():
    assert CLASSES.keys() >= {
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam",
        "RMSprop", "Rprop", "SGD", "SparseAdam",
    }  # fmt: skip
    assert {made.class_name for made in CONFIGURATIONS.values()} == CLASSES.keys()


@pytest.mark.parametrize("class_name", CLASSES)
def test_no_option_of_a_class_is_missing(class_name):
    varied = {option for made in of_class(class_name) for option in made.options}
    assert varied == options_in(class_name)


@pytest.mark.parametrize("class_name", CLASSES)
def test_every_option_is_varied_in_every_implementation(class_name):
    asked = [tuple(options.items()) for options in implementations(class_name)]
    rest = {
        tuple((key, value) for key, value in made.options.items() if key not in ("foreach", "fused"))
        for made in of_class(class_name)
    }
    assert len(of_class(class_name)) == len(asked) * len(rest)


@pytest.mark.parametrize("class_name", CLASSES)
def test_an_option_is_varied_to_another_value_than_its_default(class_name):
    for made in of_class(class_name):
        plain = CLASSES[class_name]([torch.nn.Parameter(torch.ones(2, 2))], **made.always).defaults
        assert all(plain[key] != value for key, value in made.options.items() if key != "lr"), made.name


def test_the_table_is_as_large_as_what_was_run_by_hand():
    assert len(DTYPES) * sum(refusal(made) is None for made in CONFIGURATIONS.values()) >= ENOUGH


def test_a_sample_of_each_class_goes_on_in_the_same_bits(tmp_path):
    assert {CONFIGURATIONS[name].class_name for name in SAMPLE} == CLASSES.keys()
    assert not not_exact(carried_out(Plan(cases(SAMPLE), str(tmp_path))))


@pytest.mark.exact
@pytest.mark.parametrize("class_name", CLASSES)
def test_every_configuration_of_a_class_goes_on_in_the_same_bits(class_name, tmp_path, record_property):
    plan = Plan(cases(made.name for made in of_class(class_name)), str(tmp_path))
    found = carried_out_afresh(plan)
    report("optimizers", plan, found, record_property)
    refused = {case: refusal_of(plan, case) for case in plan.cases if refusal_of(plan, case)}
    expected = {case: refusal(CONFIGURATIONS[case.name]) for case in plan.cases}
    assert refused.keys() == {case for case, beginning in expected.items() if beginning}
    assert all(message.startswith(expected[case]) for case, message in refused.items())
    assert not not_exact({case: by_cut for case, by_cut in found.items() if case not in refused})


def test_what_torch_itself_restores_otherwise_is_noticed(tmp_path):
    nadam, asgd, adamw = (
        Case("NAdam foreach=True", "bf16"),
        Case("ASGD foreach=True, t0=2.0", "bf16"),
        Case("AdamW foreach=True", "fp32"),
    )
    plan = Plan((nadam, asgd, adamw), str(tmp_path), by_torch=True)
    found = carried_out(plan)
    assert set(found[adamw].values()) == {"exact"}
    # The product of momenta is cast from fp32, and the run goes another way.
    at_the_cut, *_, at_the_end = differing(plan, nadam, "after zero_grad.json").values()
    assert at_the_cut
    assert all(name.endswith(" mu_product") for name in at_the_cut)
    assert "head" in at_the_end
    # So are the rate and the weight of the average.
    at_the_cut = next(iter(differing(plan, asgd, "after zero_grad.json").values()))
    assert {name.split()[-1] for name in at_the_cut} == {"eta", "mu"}


def test_fused_sgd_of_bf16_needs_small_parameters_as_long_as_it_skips_vectors():
    # Where this fails, torch has mended its kernel, and `net_for` needs no exception.
    parameter = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter], lr=0.5, fused=True).step()
    assert parameter.eq(1).all()
    sizes = [parameter.numel() for parameter in net_for("steady", torch.bfloat16).parameters()]
    assert max(sizes) < 8


def test_a_process_that_gave_no_answer_leaves_no_configuration_exact(tmp_path):
    plan = Plan((Case("AdamW default", "fp32"),), str(tmp_path))
    assert not_exact(carried_out(plan)) == {}
    (plan.folder(plan.cases[0]) / "mid-window.json").unlink()
    assert not_exact({case: verdicts(plan, case) for case in plan.cases})
