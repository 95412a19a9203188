"""What is stored though a base was to be left out, and filters that say nothing: told where it can still be mended."""

import pytest
import torch

import segue
from segue.errors import BaseMismatch, BaseWarning, UnsupportedState
from tests._session.adapted import Adapted, make, trained


def bind(model, **options):
    state = segue.TrainableOnly(**options)
    return segue.Training(model, torch.optim.SGD(trained(model), lr=0.1), model_state=state)


def test_an_identity_taken_before_all_was_frozen_is_told():
    model = Adapted()
    model.second.base.requires_grad_(True)
    early = segue.base_identity(model)
    model.second.base.requires_grad_(False)
    with pytest.warns(
        BaseWarning, match="not in the identity of the base, so 288 bytes more .* second.base.weight"
    ) as caught:
        training = bind(model, base=early)
    assert caught[0].filename == __file__
    assert "second.base.weight" in training.capture().model.tensors


@pytest.mark.parametrize("base", [None, "named"])
def test_a_parameter_of_the_base_that_changes_is_told_once(base):
    model, _, training = make(base=base)
    with torch.no_grad():
        model.first.base.weight.add_(1)
    with pytest.warns(
        BaseWarning, match="no longer the base's, so 256 bytes more .* first.base.weight"
    ) as caught:
        record = training.capture()
    assert caught[0].filename == __file__
    assert "first.base.weight" in record.model.tensors
    training.capture()


def test_a_base_that_was_cast_since_is_refused_with_what_to_do():
    model = Adapted()
    identity = segue.base_identity(model)
    model.first.base.double()
    with pytest.raises(BaseMismatch, match="after the base is loaded and cast"):
        bind(model, base=identity)


@pytest.mark.parametrize("option", ["omit", "keep", "trainable"])
@pytest.mark.parametrize("names", ["frist.*", "first", ["first.*", "frist.*"], lambda name: False])
def test_a_filter_that_fits_nothing_is_refused(option, names):
    model = Adapted()
    with pytest.raises(UnsupportedState, match="no tensor of the model has such a name") as caught:
        bind(model, base="named", **{option: names})
    assert caught.value.code == "model_state.filter"
    assert caught.value.where == f"TrainableOnly({option}=...)"
    assert "first.A" in caught.value.hint
