"""The claim, for wrappers: saved in any form and continued in any other, in a new process, a training ends in the same bits.

Each form trains in one process and saves at every boundary; other processes, under another seed and hash seed, go on in
every form from every other. All is compared with the plain form that was never cut, by digests of everything.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.exactness.forms import ADAPTED, COMPILED, FORMS
from tests.exactness.forms_plans import TOTAL, Plan
from tests.exactness.processes import ROOT

QUICK = (
    ("compiled DDP", "layers called like wrappers, wrapped", 3),
    ("layers called like wrappers, wrapped", "DDP of compiled of checkpointed", 1),
    ("DDP of compiled of checkpointed", "plain", 4),
    ("plain", "compiled beside plain", 3),
    ("compiled beside plain", "a subclass of DDP", 2),
)
QUICK_ADAPTED = (
    ("injected", "DDP of compiled of peft's", 3),
    ("DDP of compiled of peft's", "injected", 3),
    ("peft's around compiled beside plain", "in peft's wrappers", 2),
)


def carried_out(plan, hash_seed):
    command = [
        sys.executable,
        "-W",
        "error::RuntimeWarning",
        "-m",
        "tests.exactness.forms_plans",
        plan.to_json(),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=900, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def check(root, uninterrupted, pairs, adapted=False, dropout=0.0):
    """Train in some forms without a cut, go on in pairs of them, and compare all bits."""
    carried_out(Plan(str(root), uninterrupted, adapted=adapted, dropout=dropout), hash_seed=1)
    carried_out(Plan(str(root), (), pairs, adapted=adapted, dropout=dropout, seed=1000), hash_seed=2)
    seen = {form: json.loads((root / f"{form}.json").read_text()) for form in uninterrupted}
    for form, expected in seen.items():
        assert len({entry["model"] for entry in expected.values()}) > TOTAL // 2
        assert dropout or expected == seen[uninterrupted[0]], form
    for before, after, cut in pairs:
        found, expected = json.loads((root / f"{before}--{after}--{cut}.json").read_text()), seen[before]
        assert sorted(map(int, found)) == list(range(cut, TOTAL + 1))
        for boundary, entry in found.items():
            told = (
                {**expected[boundary], "loss": entry["loss"]} if int(boundary) == cut else expected[boundary]
            )
            differing = [name for name in entry if entry[name] != told[name]]
            assert not differing, (
                f"{before} -> {after} cut at {cut}: {differing} differ at boundary {boundary}"
            )


def forms_of(pairs, first):
    return tuple(dict.fromkeys([first, *(before for before, *_ in pairs)]))


@pytest.mark.timeout(900)
def test_a_training_goes_on_in_another_form(tmp_path):
    check(tmp_path, forms_of(QUICK, "plain"), QUICK)


def pairs_from(before, forms):
    """Pair a form with every form, each at another boundary: over all of them, each form is cut and joined at all."""
    first = list(forms).index(before)
    return tuple((before, after, (first + at) % TOTAL) for at, after in enumerate(forms))


@pytest.mark.exact
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("before", FORMS)
def test_a_training_goes_on_from_every_form_in_every_other(before, tmp_path):
    check(tmp_path, tuple(dict.fromkeys(["plain", before])), pairs_from(before, FORMS))


@pytest.mark.exact
@pytest.mark.timeout(1800)
def test_with_dropout_a_training_goes_on_in_each_form_as_it_would_have(tmp_path):
    pairs = tuple((form, form, cut) for form in FORMS for cut in range(TOTAL))
    check(tmp_path, tuple(FORMS), pairs, dropout=0.2)


@pytest.mark.exact
@pytest.mark.timeout(1800)
def test_compiled_to_kernels_a_training_goes_on_as_it_would_have(tmp_path):
    pairs = tuple((form, form, cut) for form in COMPILED for cut in range(TOTAL))
    check(tmp_path, tuple(COMPILED), pairs, dropout=0.2)


@pytest.mark.exact
@pytest.mark.timeout(1800)
def test_the_state_goes_to_compiled_kernels_and_back_and_only_rounding_differs_after(tmp_path):
    """Which is why the environment says what runs compiled."""
    pairs = (
        ("by inductor", "plain", 3),
        ("plain", "by inductor, DDP inside", 3),
        ("by aot_eager", "by inductor", 2),
    )
    forms = forms_of(pairs, "plain")
    carried_out(Plan(str(tmp_path), forms), hash_seed=1)
    carried_out(Plan(str(tmp_path), (), pairs, seed=1000), hash_seed=2)
    for before, after, cut in pairs:
        found = json.loads((tmp_path / f"{before}--{after}--{cut}.json").read_text())[str(cut)]
        expected = json.loads((tmp_path / f"{before}.json").read_text())[str(cut)]
        assert {**found, "loss": expected["loss"]} == expected


@pytest.fixture
def peft():
    if importlib.util.find_spec("peft") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("peft or transformers is not installed")


@pytest.mark.exact
@pytest.mark.timeout(900)
def test_a_training_of_adapters_goes_on_in_another_form(peft, tmp_path):
    check(tmp_path, forms_of(QUICK_ADAPTED, "injected"), QUICK_ADAPTED, adapted=True)


@pytest.mark.exact
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("before", ADAPTED)
def test_a_training_of_adapters_goes_on_from_every_form_in_every_other(peft, before, tmp_path):
    check(tmp_path, tuple(dict.fromkeys(["injected", before])), pairs_from(before, ADAPTED), adapted=True)
