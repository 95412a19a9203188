"""A record at a glance, as plain data: the shape that `segue inspect --json` prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from segue._record.base import BaseRecord
from segue._record.composite import blobs
from segue._record.contract import TensorSpec
from segue._record.digest import STATE_SECTIONS
from segue._record.precision import converted_tensors
from segue._record.sections import (
    GroupRecord,
    ModuleRecord,
    OpaqueOptimizerRecord,
    OptimizerRecord,
    SchedulerRecord,
)
from segue._record.tensors import CapturedTensor
from segue._record.training import TrainingRecord
from segue._record.window import WindowRecord
from segue.cli.plain import plain


def summarize(record: TrainingRecord) -> dict[str, Any]:
    """Sum up a record. Reads no tensor but the optimizers' scalar step counts."""
    return {
        "kind": record.kind,
        "step": record.step,
        "microbatch": record.microbatch,
        "world_size": record.topology.world_size,
        "rank": record.topology.rank,
        "num_bytes": record.num_bytes,
        "precision": _precision(record),
        "sections": _sections(record),
        "model": _module(record.model),
        "optimizers": {name: _optimizer(item) for name, item in record.optimizers.items()},
        "opaque_optimizers": {name: _opaque(item) for name, item in (record.opaque_optimizers or {}).items()},
        "schedulers": {name: _scheduler(item) for name, item in record.schedulers.items()},
        "gradients": _tensors(record.gradients.tensors.values()),
        "window": None if record.window is None else _window(record.window),
        "components": {
            name: {"kind": item.kind, "class": item.class_name} for name, item in record.components.items()
        },
        "streams": None
        if record.streams is None
        else [name for name, value in record.streams.items() if value],
        "private_streams": {
            path: {"kind": stream["kind"], "aliases": stream["aliases"]}
            for path, stream in (record.private_streams or {}).items()
        },
        "caller_state": plain(record.caller_state),
        "environment": plain(record.environment),
        "lineage": plain(record.lineage),
    }


def _precision(record: TrainingRecord) -> dict[str, Any]:
    return {
        "name": record.precision,
        "num_converted_tensors": len(converted_tensors(record)),
        "num_lossy_tensors": len(record.lossy),
    }


def _sections(record: TrainingRecord) -> dict[str, dict[str, int]]:
    trees = record.sections()
    return {name: _tensors(blobs(trees[name])) for name in STATE_SECTIONS if name in trees}


def _tensors(found: Iterable[Any]) -> dict[str, int]:
    items = list(found)
    return {"num_tensors": len(items), "num_bytes": sum(item.num_bytes for item in items)}


def _module(module: ModuleRecord) -> dict[str, Any]:
    contract = module.contract
    specs = {name: spec for name, spec in contract.tensors.items() if spec is not None}
    parameters = [name for name, spec in specs.items() if spec.kind == "parameter"]
    trainable = set(contract.trainable)
    return {
        "num_parameters": len(parameters),
        "num_elements": _elements(specs, parameters),
        "num_trainable_elements": _elements(specs, trainable),
        "num_buffers": len(contract.tensors) - len(parameters),
        "dtypes": dict(Counter(_dtype(spec) for spec in specs.values())),
        "devices": sorted({spec.device for spec in specs.values()}),
        "shared": [{"names": list(group.members), "tied": group.tied} for group in contract.sharing],
        "training_mode": module.training.get("", None),
        "base": _base(module.base),
    }


def _dtype(spec: TensorSpec) -> str:
    """Name a dtype; of a quantized tensor, which only shows one, its class too."""
    return spec.dtype if spec.parts is None else f"{spec.parts.short_name} of {spec.dtype}"


def _elements(specs: Mapping[str, TensorSpec], names: Iterable[str]) -> int:
    return sum(math.prod(specs[name].shape) for name in names if name in specs)


def _base(base: BaseRecord | None) -> dict[str, Any] | None:
    if base is None:
        return None
    return {"source": base.source, "identity": base.identity, "num_omitted": len(base.omitted)}


def _optimizer(optimizer: OptimizerRecord) -> dict[str, Any]:
    slots = sorted({slot for state in optimizer.state.values() if isinstance(state, dict) for slot in state})
    steps = sorted({step for state in optimizer.state.values() if (step := _step(state)) is not None})
    return {
        "class": optimizer.class_name,
        "groups": [_group(group) for group in optimizer.groups],
        "num_parameters_with_state": len(optimizer.state),
        "slots": slots,
        "steps": [steps[0], steps[-1]] if steps else None,
        "attributes": plain(optimizer.attributes),
    }


def _opaque(optimizer: OpaqueOptimizerRecord) -> dict[str, Any]:
    groups = optimizer.groups
    return {
        "class": optimizer.state.class_name,
        "kind": optimizer.state.kind,
        "groups": None if groups is None else [{"num_parameters": len(group)} for group in groups],
    }


def _group(group: GroupRecord) -> dict[str, Any]:
    return {"num_parameters": len(group.parameters), "options": plain(group.options)}


def _step(state: Any) -> float | None:
    step = state.get("step") if isinstance(state, dict) else None
    if isinstance(step, CapturedTensor) and step.num_elements == 1:
        return float(step.to_host().item())
    return float(step) if isinstance(step, int | float) else None


def _scheduler(scheduler: SchedulerRecord) -> dict[str, Any]:
    position = scheduler.position if isinstance(scheduler.position, dict) else {}
    return {
        "class": scheduler.class_name,
        "optimizer": scheduler.optimizer,
        "last_epoch": plain(position.get("last_epoch")),
        "last_lr": plain(position.get("_last_lr")),
        "outstanding_steps": scheduler.outstanding_steps,
        "children": [_scheduler(child) for child in scheduler.children],
    }


def _window(window: WindowRecord) -> dict[str, Any]:
    state: dict[str, Any] = plain(window.state)
    return {**state, "sums": _tensors(window.sums.tensors.values())}
