"""A module alone, without a `Training`: as a value and back."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from segue._capture import module as modules
from segue._capture.boundary import refuse_cached_weights, refuse_inside_backward
from segue._capture.component import ObjectRestore
from segue._capture.extra_state import extra_objects
from segue._capture.lazily import Materialised
from segue._capture.writes import run_all
from segue._record.base import BaseIdentity
from segue._record.composite import blobs
from segue._record.sections import ModuleRecord
from segue._session.former_names import module_with_names_of_today
from segue._session.live import refuse_no_model
from segue._session.model_checks import base_findings
from segue._session.own_dtypes import in_own_dtypes
from segue._session.refusals import refuse_all
from segue.errors import InvalidRecord


def capture_module(module: nn.Module) -> ModuleRecord:
    """Take a module as a value: every parameter and buffer, trainable flags, modes, and extra state.

    Args:
        module: In any wrapper; names are those without wrappers.

    Returns:
        Its tensors by canonical name, a tied one once, in host memory that only the record owns.

    Raises:
        NotAtBoundary: Inside a backward.
        UnsupportedState: If a tensor, or what a module saves in a way of its own, can't be kept.

    Guarantees:
        Read-only. `restore_module` gives every bit back.

    Cost:
        One copy of each parameter and buffer into host memory; blocks until it is done.

    Collective:
        No.
    """
    refuse_inside_backward()
    refuse_cached_weights()
    refuse_no_model(module)
    return modules.capture_module(module, "model")


def restore_module(
    record: ModuleRecord, module: nn.Module, *, base: BaseIdentity | str | None = None
) -> None:
    """Fill a module with a record's values, in place. Checks everything first; inverse of `capture_module`.

    Args:
        record: From `capture_module`, or `TrainingRecord.model`. Not changed, not shared with afterwards.
        module: Built as the recorded one was.
        base: What the record leaves out, for one that `TrainableOnly(base=...)` made with a base of the caller's naming;
            content is compared in any case.

    Raises:
        DeviceMismatch: If a tensor is on another device.
        ContractMismatch: If tensors or submodules differ in names, layouts, ties or flags, modules of torch in what they
            compute with, or a module refuses its extra state; then it has been put back.
        BaseMismatch: If the record leaves a base out, and this module has another.
        LossyRecord: If it was stored in a precision that lost something.
        InvalidRecord: If it is no record of a module, or one of a model that the caller restores.
        StoreError: If stored bytes do not match their checksums.

    Guarantees:
        Everything is checked, bytes too, before the first write; after a refusal nothing has changed. Nothing is cast,
        and optimizers and compiled code keep their references. The dtype that gradients come in (`grad_dtype`) is left
        to the program and its optimizers, and not compared.

    Cost:
        Two reads of each stored tensor, and one copy to its device.

    Collective:
        No.
    """
    refuse_cached_weights()
    refuse_no_model(module)
    if not isinstance(record, ModuleRecord) or (
        record.base is not None and record.base.source == "model_state"
    ):
        raise InvalidRecord(
            "not the record of a module that segue captured", code="module.record", where="restore_module",
            expected="a ModuleRecord with its tensors", found=type(record).__name__,
        )  # fmt: skip
    record = module_with_names_of_today(record, module)
    record = replace(record, tensors=in_own_dtypes(record.tensors, "model"))
    with Materialised([(record, module, "model")]) as lazy:
        findings = [*modules.check_module(record, module, "model"), *base_findings(record, module, base)]
        # In which dtype gradients come, optimizers set, which are made for the restored module.
        refuse_all(finding for finding in findings if not finding.code.startswith("model.grad_dtype."))
        for blob in (*blobs(dict(record.tensors)), *blobs(record.extra)):
            blob.source.verify()
        # A buffer that is allocated in inference mode could never be written to outside of it (torch 2.13).
        with torch.inference_mode(False):
            writes = modules.plan_module(record, module, "model")
            _tell_extra_state(record, module)
            lazy.keep()
            run_all(writes)


def _tell_extra_state(record: ModuleRecord, module: nn.Module) -> None:
    objects = extra_objects(record.extra, module, "model")
    records = {scope: state for scope, (state, _) in objects.items()}
    values = {scope: value for scope, (_, value) in objects.items()}
    ObjectRestore(records, values, reread=records).run()
