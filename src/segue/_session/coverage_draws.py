"""What workers of loaders drew, told as state that is not captured: it ends with their processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segue._capture.data.position import DataPosition
from segue._session.coverage_lines import Told

_INSTEAD = (
    "wrap the dataset, `segue.SeededSamples(dataset, seed=0)`, so that draws follow from the sample; for what a `collate_fn` "
    "draws, run passes again: `segue.DataPosition(loader, replay=True)`"
)


def told_of_draws(components: Mapping[str, Any]) -> Iterator[Told]:
    """Tell of each position in data whose workers have drawn from streams that nobody restores."""
    for name, value in components.items():
        if isinstance(value, DataPosition) and value.drawn_in_workers:
            streams = ", ".join(value.drawn_in_workers)
            what = f"its workers have drawn from random streams of their own ({streams}), which end with them"
            yield Told(f"component.{name}.workers", what, "", ("", _INSTEAD))
