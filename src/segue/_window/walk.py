"""The parameters of a model, found again only when one of its modules has changed.

`named_parameters()` takes a microsecond and more for each parameter, at each microbatch. A parameter that is added or
replaced in mid-window must still be noticed, so what is remembered is compared with the tables of all modules.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


class ModelWalk:
    """One look at a model: its distinct parameters in the order of `model.parameters()`."""

    def __init__(self, model: nn.Module) -> None:
        # Keeping the modules and parameters keeps their ids theirs.
        self._modules = list(_distinct_modules(model, "", set()))
        self._tables = [
            table for _, module in self._modules for table in (module._parameters, module._modules)
        ]
        self._contents = self._look()
        self.parameters = list(_distinct_parameters(self._modules))
        """Each with the first of its names."""

    def is_current(self) -> bool:
        """Tell whether every module still has the parameters and modules it had."""
        return self._look() == self._contents

    def _look(self) -> list[int]:
        return [id(entry) for table in self._tables for entry in table.values()]


def _distinct_modules(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    seen.add(id(module))
    yield path, module
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            yield from _distinct_modules(child, f"{path}{name}.", seen)


def _distinct_parameters(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Parameter]]:
    seen: set[int] = set()
    for path, module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield path + name, parameter
