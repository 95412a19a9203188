"""Weights that are computed from others are known by the names of those."""

from segue._record.contract import TensorSpec, TrainableContract
from segue._record.parametrized import parametrization_findings


def found(recorded, live):
    findings, told = parametrization_findings(recorded, live, "model")
    return {finding.code: (finding.expected, finding.found) for finding in findings}, told


PLAIN = {"a.weight", "a.bias"}
PARAMETRIZED = {"a.bias", "a.parametrizations.weight.original0", "a.parametrizations.weight.original1"}
SPECTRAL = {"a.bias", "a.parametrizations.weight.original", "a.parametrizations.weight.0._u"}
OLD_NORM = {"a.bias", "a.weight_g", "a.weight_v"}
OLD_SPECTRAL = {"a.bias", "a.weight_orig", "a.weight_u", "a.weight_v"}
PRUNED = {"a.bias", "a.weight_orig", "a.weight_mask"}


def test_each_way_is_told_from_a_plain_weight_and_from_each_other():
    ways = [PLAIN, PARAMETRIZED, OLD_NORM, OLD_SPECTRAL, PRUNED]
    for before in ways:
        for now in ways:
            findings, told = found(before, now)
            assert findings.keys() == (set() if before is now else {"model.parametrized.a.weight"})
            assert told == (set() if before is now else (before | now) - {"a.bias"})


def test_what_is_told_says_how_it_was_and_is():
    assert found(PARAMETRIZED, PLAIN)[0] == {
        "model.parametrized.a.weight": ("parametrized", "a plain tensor")
    }
    assert found(PLAIN, PRUNED)[0] == {"model.parametrized.a.weight": ("a plain tensor", "pruned")}


def test_another_parametrization_is_told_by_its_tensors():
    assert found(PARAMETRIZED, SPECTRAL) == ({}, set())


def test_a_weight_at_the_top_and_one_inside_a_parametrization_are_found():
    assert found({"parametrizations.weight.original"}, {"weight"})[0].keys() == {"model.parametrized.weight"}
    inner = {"parametrizations.weight.0.layer.weight", "parametrizations.weight.original"}
    norm = {
        "parametrizations.weight.0.layer.parametrizations.weight.original0", "parametrizations.weight.original",
    }  # fmt: skip
    assert found(inner, norm)[0].keys() == {"model.parametrized.parametrizations.weight.0.layer.weight"}


def test_a_weight_that_the_other_side_lacks_is_missing_and_nothing_else():
    assert found(PARAMETRIZED, {"a.bias"}) == ({}, set())


def test_names_that_only_look_alike_are_no_weights():
    both = {
        "a.weight",
        "a.weight_g",
        "a.weight_v",
        "parametrizations.x",
        "parametrizations.weight.mine",
        "parametrizations",
    }
    assert found(both, {"weight", "a.weight"}) == ({}, set())


def test_a_contract_tells_nothing_more_of_them():
    spec = TensorSpec("parameter", "float32", (2,), (1,), "cpu", True, None)

    def contract(names):
        return TrainableContract(dict.fromkeys(sorted(names), spec), (), tuple(sorted(names)))

    codes = [finding.code for finding in contract(PLAIN).differences(contract(OLD_NORM), "model")]
    assert codes == ["model.parametrized.a.weight"]


def test_a_new_name_is_proposed_for_all_of_it_where_all_of_it_moved():
    spec = TensorSpec("parameter", "float32", (2,), (1,), "cpu", True, None)

    def hint(before, now, scope="model"):
        contracts = [
            TrainableContract(dict.fromkeys(names, spec), (), tuple(names)) for names in (before, now)
        ]
        return next(contracts[0].differences(contracts[1], scope)).hint

    assert '{"": "module"}' in hint(("a", "b.c"), ("module.a", "module.b.c"))
    assert '{"module": ""}' in hint(("module.a", "module.b.c"), ("a", "b.c"))
    assert '{"ema/module": "ema/"}' in hint(("module.a",), ("a",), "component.ema")
    assert '{"module.a": "a"}' in hint(("module.a", "kept"), ("a", "kept"))
