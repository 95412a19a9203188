"""A torch optimizer alone, without a `Training`: as a value and back."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture import optimizer as optimizers
from segue._capture.boundary import refuse_inside_backward
from segue._capture.naming import named_parameters
from segue._capture.options import keeping_the_request
from segue._capture.staging import type_name
from segue._capture.writes import run_all
from segue._record.composite import blobs
from segue._record.sections import OptimizerRecord
from segue._record.structure import unstructure
from segue._session.former_names import optimizer_with_names_of_today
from segue._session.live import parameter_names, refuse_no_model
from segue._session.own_dtypes import in_own_dtypes
from segue._session.refusals import refuse_all
from segue.errors import InvalidRecord, UnsupportedState

_SCOPE = "optimizer"


def capture_optimizer(optimizer: Optimizer, model: nn.Module) -> OptimizerRecord:
    """Take a torch optimizer as a value: groups and options, and state by parameter name.

    Args:
        optimizer: Any of torch, `segue.optim.FP32Master`, and those of other libraries that keep all they know in state,
            options, and attributes that do not move. It may step any part of the model.
        model: Which names the parameters.

    Returns:
        The record; what has no state yet has none in it. Host memory that only the record owns.

    Raises:
        NotAtBoundary: Inside a backward.
        UnsupportedState: If it steps a parameter that is not the model's, or keeps state that can't be kept.

    Guarantees:
        Read-only: no step, no state invented. `restore_optimizer` gives every bit back.

    Cost:
        One copy of each state tensor into host memory; blocks until it is done.

    Collective:
        No.
    """
    refuse_inside_backward()
    _refuse_wrong_kinds(optimizer, model)
    record = optimizers.capture_optimizer(optimizer, parameter_names(named_parameters(model)), _SCOPE)
    # What the program asked for nobody took down as the optimizer was made: when it is first seen here, and in a
    # process that has just restored it, depends on where a run was cut. So a record holds nothing that does.
    groups = tuple(replace(group, configured=group.options) for group in record.groups)
    return replace(record, groups=groups)


def restore_optimizer(record: OptimizerRecord, optimizer: Optimizer, model: nn.Module) -> None:
    """Put recorded state and options into a torch optimizer. Checks everything first; inverse of `capture_optimizer`.

    Args:
        record: From `capture_optimizer`, or `TrainingRecord.optimizers`. Not changed, not shared with afterwards.
        optimizer: Built as the recorded one was.
        model: Which names the parameters.

    Raises:
        OptimizerMismatch: If class, groups, their members or their order differ.
        LossyRecord: If it was stored in a precision that lost something.
        InvalidRecord: If it is no record of an optimizer.
        UnsupportedState: If the optimizer itself could not be captured.
        StoreError: If stored bytes do not match their checksums.

    Guarantees:
        Everything is checked, bytes too, before the first write; after a refusal nothing has changed. State goes to
        its parameter by name, without a cast; the group dictionaries stay, and tensor options are filled in place.
        All options become what they were at the capture: what a program asks for is not compared, since nobody took it
        down as the recorded one began. (`Training` does.)

    Cost:
        Two reads of each stored tensor, and one copy to its device.

    Collective:
        No.
    """
    _refuse_wrong_kinds(optimizer, model)
    if not isinstance(record, OptimizerRecord):
        raise InvalidRecord(
            "not the record of a torch optimizer", code="optimizer.record", where="restore_optimizer",
            expected="OptimizerRecord", found=type(record).__name__,
        )  # fmt: skip
    record = optimizer_with_names_of_today(record, model)
    record = replace(record, state=in_own_dtypes(record.state, _SCOPE))
    names = parameter_names(named_parameters(model))
    findings = list(optimizers.check_optimizer(record, optimizer, names, _SCOPE, compares_requests=False))
    refuse_all(findings)
    for blob in blobs(unstructure(record)):
        blob.source.verify()
    # State that is allocated in inference mode could never be stepped again (torch 2.13).
    with torch.inference_mode(False), keeping_the_request(optimizer, _SCOPE):
        run_all(optimizers.plan_optimizer(record, optimizer, names, _SCOPE, ()))


def _refuse_wrong_kinds(optimizer: object, model: object) -> None:
    refuse_no_model(model)
    if not isinstance(optimizer, Optimizer):
        raise UnsupportedState(
            "an optimizer must be a torch.optim.Optimizer", where=_SCOPE, found=type_name(optimizer)
        )
