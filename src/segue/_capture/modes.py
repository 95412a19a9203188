"""Whether modules train or evaluate: the `training` flag of each, and of the wrappers around it.

Programs read the outermost flag (`was_training = model.training`), so a wrapper's is state too. `train()` and `eval()` of
a wrapper reach what it wraps; called inside, as `model.module.eval()`, they leave the wrapper as it was. So wrappers are
as what they wrap, and one that isn't is kept under a name of its own, `layer.(DataParallel)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from torch import nn

from segue._capture.naming import ModulePlace, joined, places
from segue._capture.writes import ObjectWrite, Write


def modes_of(module: nn.Module, scope: str) -> Iterator[tuple[str, bool]]:
    """Yield the `training` flag of each submodule by path, and of each wrapper that differs from what it wraps."""
    for place in places(module, scope):
        for name, wrapper in _wrappers(place):
            if wrapper.training != place.module.training:
                yield name, bool(wrapper.training)
        yield place.path, bool(place.module.training)


def paths_with_modes(recorded: Collection[str], module: nn.Module, scope: str) -> set[str]:
    """Return the paths of all submodules, and of those wrappers that a record tells of."""
    found = set()
    for place in places(module, scope):
        found.add(place.path)
        found |= {name for name, _ in _wrappers(place) if name in recorded}
    return found


def plan_modes(recorded: Mapping[str, bool], module: nn.Module, scope: str) -> Iterator[Write]:
    """Plan to set every flag that is recorded; a wrapper of which nothing is told is as what it wraps."""
    for place in places(module, scope):
        if place.path not in recorded:  # whoever restores the model may have built it otherwise
            continue
        mode = recorded[place.path]
        for name, wrapper in _wrappers(place):
            yield ObjectWrite(f"{scope} {name} mode", _set_mode(wrapper, recorded.get(name, mode)))
        yield ObjectWrite(f"{scope} {place.path} mode", _set_mode(place.module, mode))


def _wrappers(place: ModulePlace) -> Iterator[tuple[str, nn.Module]]:
    """Yield the wrappers of a module by name: the class, counted from the outside in where several are of one."""
    seen: Counter[str] = Counter()
    for wrapper, _ in place.wrappers:
        name = type(wrapper).__name__
        seen[name] += 1
        yield joined(place.path, f"({name})" if seen[name] == 1 else f"({name} {seen[name]})"), wrapper


def _set_mode(module: nn.Module, training: bool) -> Callable[[], None]:
    def assign() -> None:
        # Not `train()`: it recurses, and users override it.
        module.training = training

    return assign
