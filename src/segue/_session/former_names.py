"""Names of older checkpoints, which had wrappers in them that names are without now: peft's, and subclasses of torch's.

A program that was saved as `base_model.model.head.weight` goes on as `head.weight`. Nothing of the record tells which
of its names are wrappers'; the live module does, and what doesn't fit it by either name is refused as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from segue._capture.naming import joined, places
from segue._capture.wrappers import was_always_skipped
from segue._record.gradients import GradientsRecord
from segue._record.rename import (
    R,
    known_names,
    names_around,
    names_in,
    new_names,
    renamed,
    renamed_module,
    renamed_optimizer,
)
from segue._record.sections import ModuleRecord, OptimizerRecord


def with_names_of_today(record: R, modules: Mapping[str, nn.Module]) -> R:
    """Return a record under the names that a module's tensors have now.

    Args:
        record: Not changed.
        modules: The live modules by the prefix of their names; the model's is empty.
    """
    return renamed(record, _former_names(known_names(record), modules))


def module_with_names_of_today(record: ModuleRecord, module: nn.Module) -> ModuleRecord:
    """Return the record of a module alone under the names that a module's tensors have now."""
    return renamed_module(record, _former_names(names_in(record), {"": module}))


def gradients_with_names_of_today(record: GradientsRecord, model: nn.Module) -> GradientsRecord:
    """Return gradients alone under the names that a model's parameters have now."""
    entries = _former_names(names_around(record.tensors), {"": model})
    return record.renamed(new_names(record.tensors, entries)) if entries else record


def optimizer_with_names_of_today(record: OptimizerRecord, model: nn.Module) -> OptimizerRecord:
    """Return the record of an optimizer alone under the names that a model's parameters have now."""
    names = (*record.state, *(name for group in record.groups for name in group.parameters))
    return renamed_optimizer(record, _former_names(names_around(names), {"": model}))


def _former_names(known: set[str], modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the recorded names of submodules that stood in wrappers, with those that they have now."""
    names = {}
    for prefix, module in modules.items():
        now = {path for path, *_ in places(module, prefix or "model")}
        for path, former in _formerly(module, prefix or "model"):
            # A module of the program's own may be called so now.
            if prefix + former in known and former not in now:
                names[prefix + former] = prefix + path
    return names


def _formerly(module: nn.Module, scope: str) -> Iterator[tuple[str, str]]:
    """Yield the canonical path of each wrapped module, and what it was when names had all wrappers of these kinds."""
    former: dict[str, str] = {}
    for path, _, wrappers in places(module, scope):
        outer, _, own = path.rpartition(".")
        place = joined(former.get(outer, outer), own) if path else ""
        for wrapper, attribute in wrappers:
            if not was_always_skipped(wrapper):
                place = joined(place, attribute)
        former[path] = place
        if place != path:
            yield path, place
