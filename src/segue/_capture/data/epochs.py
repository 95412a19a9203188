"""The epoch numbers of samplers and datasets: set before each pass, recorded, and set again after a restore.

A sampler that draws its order from seed and epoch repeats one order in every pass unless somebody tells it the epoch,
and none saves it. A position counts its passes, so it tells. What the program itself has set to something else is the
program's: it is recorded and restored, and no longer touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segue._capture.data.classes import NODE, NODES_LOADER, is_a

_PARTS = ("batch_sampler", "sampler", "dataset", "root", "source", "iterable")
_MAX_PARTS = 64


class Epochs:
    """What in a loader has a `set_epoch`, and who sets it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._known = self._read()
        self._programs: set[str] = set()
        # What the last pass was told: also where it can't be read.
        self._told: dict[str, int] = {}

    def begin(self, epoch: int) -> None:
        """Tell every holder the epoch of the pass that begins, except those that the program sets."""
        self._notice()
        for path, holder in _holders(self._loader):
            if path not in self._programs:
                holder.set_epoch(epoch)
                self._told[path] = epoch
        self._known = self._read()

    def values(self) -> dict[str, Any]:
        """Return the epochs as they are, and the paths of those that the program sets."""
        values = self._read()
        moved = {path for path, value in values.items() if value != self._known.get(path)}
        return {"values": {**self._told, **values}, "programs": sorted(self._programs | moved)}

    def place(self, values: Mapping[str, Any]) -> None:
        """Set the epochs as recorded."""
        for path, holder in _holders(self._loader):
            recorded = values["values"].get(path)
            if recorded is not None:
                holder.set_epoch(recorded)
                self._told[path] = recorded
        self._programs = set(values["programs"])
        self._known = self._read()

    def _notice(self) -> None:
        for path, value in self._read().items():
            if value != self._known.get(path):
                self._programs.add(path)

    def _read(self) -> dict[str, Any]:
        found = {path: _number(getattr(holder, "epoch", None)) for path, holder in _holders(self._loader)}
        return {path: value for path, value in found.items() if value is not None}


def is_epochs(values: Any) -> bool:
    """Tell whether a value of a record is what `values` returns."""
    return (
        type(values) is dict
        and values.keys() == {"values", "programs"}
        and type(values["values"]) is dict
        and all(type(path) is str and type(value) is int for path, value in values["values"].items())
        and type(values["programs"]) is list
        and all(type(path) is str for path in values["programs"])
    )


def _number(value: Any) -> int | None:
    try:
        return None if value is None or isinstance(value, str | float) else int(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _holders(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield what has a `set_epoch`: the loader, its samplers, its dataset, and what these wrap, each once."""
    seen: set[int] = set()
    found = [("loader", loader)]
    while found and len(seen) < _MAX_PARTS:
        path, value = found.pop(0)
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if callable(getattr(value, "set_epoch", None)) and not is_a(value, NODE, NODES_LOADER):
            yield path, value
        found += [
            (f"{path}.{name}", part)
            for name in _PARTS
            # Nodes set the epochs of their samplers themselves.
            if not (name == "sampler" and is_a(value, NODE)) and (part := _own(value, name)) is not None
        ]


def _own(value: Any, name: str) -> Any:
    return vars(value).get(name) if hasattr(value, "__dict__") else None
