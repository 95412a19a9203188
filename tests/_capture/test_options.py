"""Options: which are one tensor, which were asked for, which stay when a change is accepted."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from segue import Training
from segue._record.diff import diff
from segue.errors import OptimizerMismatch


def two_groups(cls=Adam, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = cls([{"params": model[0].parameters()}, {"params": model[1].parameters()}], **options)
    return model, optimizer


def step(model, optimizer):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_one_tensor_learning_rate_of_all_groups_stays_one():
    _, one = two_groups(lr=torch.tensor(0.1))
    record = Training(nn.ModuleList(), {}).capture  # a training without optimizers is one too
    assert record().optimizers == {}
    model, one = two_groups(lr=torch.tensor(0.1))
    training = Training(model, one)
    assert training.capture().optimizers["optimizer"].shared_options == (("0/lr", "1/lr", "defaults/lr"),)
    one.param_groups[0]["lr"].fill_(0.5)
    other_model, other = two_groups(lr=torch.tensor(0.1))
    held = other.param_groups[0]["lr"]
    other_training = Training(other_model, other)
    other_training.restore(training.capture())
    assert other.param_groups[0]["lr"] is other.param_groups[1]["lr"] is other.defaults["lr"] is held
    assert held.item() == 0.5


def test_learning_rates_that_were_one_tensor_and_are_two_now_stay_two():
    model, one = two_groups(lr=torch.tensor(0.1))
    training = Training(model, one)
    for index, group in enumerate(one.param_groups):
        group["lr"] = torch.tensor(0.01 * (index + 1))
    step(model, one)
    other_model, other = two_groups(lr=torch.tensor(0.1))
    other_training = Training(other_model, other)
    other_training.restore(training.capture())
    assert [group["lr"].item() for group in other.param_groups] == [
        group["lr"].item() for group in one.param_groups
    ]
    assert other.param_groups[0]["lr"] is not other.param_groups[1]["lr"]
    for live in ((model, one), (other_model, other)):
        live[1].param_groups[0]["lr"].mul_(3)
        step(*live)
    assert diff(training.capture(), other_training.capture()).identical


def test_defaults_that_an_optimizer_changes_come_back():
    model, one = two_groups(SGD, lr=0.1)
    training = Training(model, one)
    one.defaults["lr"] = 0.7
    other_model, other = two_groups(SGD, lr=0.1)
    Training(other_model, other).restore(training.capture())
    assert other.defaults["lr"] == 0.7


def test_an_accepted_change_of_one_group_leaves_the_others_as_the_run_had_them():
    def made(second):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": second}]
        return model, SGD(groups, lr=0.1)

    model, one = made(0.1)
    training = Training(model, one)
    for group in one.param_groups:
        group["lr"] = 0.05
    record = training.capture()
    other_model, other = made(0.2)
    other_training = Training(other_model, other)
    with pytest.raises(OptimizerMismatch):
        other_training.restore(record)
    other_training.restore(record, accept=["optimizer.optimizer.lr"])
    assert [group["lr"] for group in other.param_groups] == [0.05, 0.2]


def test_a_group_that_was_added_in_mid_run_is_compared_with_how_it_was_added():
    def made(with_second=False):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        optimizer = SGD(model[0].parameters(), lr=0.1)
        if with_second:
            optimizer.add_param_group({"params": model[1].parameters()})
        return model, optimizer

    model, one = made()
    training = Training(model, one)
    one.add_param_group({"params": model[1].parameters()})
    training.capture()
    for group in one.param_groups:
        group["lr"] = 0.05
    record = training.capture()
    other_model, other = made(with_second=True)
    Training(other_model, other).restore(record)
    assert [group["lr"] for group in other.param_groups] == [0.05, 0.05]


def test_state_keeps_the_order_in_which_it_came_to_be(tmp_path):
    model, one = two_groups(SGD, lr=0.1, momentum=0.9)
    for parameter in (model[1].bias, model[0].weight, model[1].weight):
        parameter.grad = torch.ones_like(parameter)
        one.step()
    training = Training(model, one)
    names = {parameter: name for name, parameter in model.named_parameters()}
    other_model, other = two_groups(SGD, lr=0.1, momentum=0.9)
    Training(other_model, other).restore(training.capture())
    others = {parameter: name for name, parameter in other_model.named_parameters()}
    assert [names[p] for p in one.state] == [others[p] for p in other.state]


def test_a_schedule_by_hand_that_uses_initial_lr_is_no_unregistered_scheduler():
    model, one = two_groups(SGD, lr=0.1)
    for group in one.param_groups:
        group.setdefault("initial_lr", group["lr"])
    Training(model, one).capture()


def test_a_tensor_learning_rate_is_moved_by_its_scheduler_after_a_restore():
    def made():
        model, optimizer = two_groups(lr=torch.tensor(0.1))
        scheduler = StepLR(optimizer, 1, 0.5)
        return model, optimizer, scheduler, Training(model, optimizer, scheduler)

    model, one, scheduler, training = made()
    step(model, one)
    scheduler.step()
    other_model, other, other_scheduler, other_training = made()
    other_training.restore(training.capture())
    for live in ((model, one, scheduler), (other_model, other, other_scheduler)):
        step(*live[:2])
        live[2].step()
    assert diff(training.capture(), other_training.capture()).identical


def test_tensors_within_options_stay_one_in_all_groups_and_are_filled_where_they_lie():
    def betas():
        return torch.tensor(0.9), torch.tensor(0.99)

    model, one = two_groups(betas=betas())
    training = Training(model, one)
    one.param_groups[0]["betas"][0].fill_(0.5)
    other_model, other = two_groups(betas=betas())
    held = other.param_groups[0]["betas"]
    Training(other_model, other).restore(training.capture())
    for options in (*other.param_groups, other.defaults):
        assert all(tensor is one for tensor, one in zip(options["betas"], held, strict=True))
    assert held[0].item() == 0.5


@pytest.mark.parametrize("current", [None, {"a": (torch.tensor(3.0),)}, {5: 1, "a": [torch.tensor(3.0), 4]}])
def test_tensors_within_keys_of_ones_own_come_back_whatever_the_program_has_there(current):
    model, one = two_groups(lr=0.1)
    other_model, other = two_groups(lr=0.1)
    training, other_training = Training(model, one), Training(other_model, other)
    shared = torch.tensor(1.0)
    one.param_groups[0]["own"] = {"a": [shared, torch.tensor(2)], 5: (shared, "text")}
    one.param_groups[1]["own"] = shared
    if current is not None:
        other.param_groups[0]["own"] = current
    record = training.capture()
    other_training.restore(record)
    assert diff(record, other_training.capture()).identical
    first, second = (group["own"] for group in other.param_groups)
    assert first["a"][0] is first[5][0] is second
    assert second.item() == 1.0
