"""The picture of the demo: three loss curves, and how far the two continued ones are from the whole one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segue.demo.settings import Kill, Role, RunSettings
from segue.demo.trial import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The three colours differ in lightness too, so that they stay apart without colour.
_INK = "#24292f"
_COLOURS = {Role.UNINTERRUPTED: "#b9c3ce", Role.SEGUE: "#0b5cad", Role.STATE_DICTS: "#d9662b"}
_LABELS = {
    Role.UNINTERRUPTED: "uninterrupted",
    Role.SEGUE: "killed, continued by segue",
    Role.STATE_DICTS: "killed, continued from state dicts",
}


def can_draw() -> bool:
    """Tell whether matplotlib, an optional dependency, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(results: Mapping[Role, RunResult], kills: Sequence[Kill], run: RunSettings, path: Path) -> None:
    """Write the picture as a PNG. Needs matplotlib."""
    from matplotlib.figure import Figure

    losses = {role: np.asarray(result.final_losses()) for role, result in results.items()}
    figure = Figure(figsize=(9, 6), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_losses(above, losses, run)
    _draw_distances(below, losses)
    for axes in (above, below):
        _draw_kills(axes, kills, named=axes is above)
        _tidy(axes)
    exact = bool((losses[Role.SEGUE] == losses[Role.UNINTERRUPTED]).all())
    title = "both continuations look right, one is" if exact else "no continuation is exact"
    figure.suptitle(f"One training, killed three times: {title}", color=_INK, fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_losses(axes: Axes, losses: Mapping[Role, np.ndarray], run: RunSettings) -> None:
    # The mean of each window: single microbatches of unequal lengths scatter more than the runs differ.
    window = run.window_microbatches
    ends = np.arange(window, run.num_microbatches + 1, window)
    styles = {
        Role.UNINTERRUPTED: {"linewidth": 6.0},
        Role.STATE_DICTS: {"linewidth": 1.6},
        Role.SEGUE: {"linewidth": 1.6, "linestyle": (0, (4, 2))},
    }
    for role, style in styles.items():
        means = losses[role][: len(ends) * window].reshape(-1, window).mean(axis=1)
        axes.plot(ends, means, color=_COLOURS[role], label=_LABELS[role], **style)  # type: ignore[arg-type]
    axes.set_ylabel("loss (mean of a window)", color=_INK)
    _legend(axes, loc="upper right")


def _draw_distances(axes: Axes, losses: Mapping[Role, np.ndarray]) -> None:
    whole = losses[Role.UNINTERRUPTED]
    microbatches = np.arange(1, len(whole) + 1)
    for role, width in ((Role.STATE_DICTS, 1.0), (Role.SEGUE, 1.8)):
        distance = np.abs(losses[role] - whole)
        told = f"up to {distance.max():.2g}" if distance.any() else "exactly 0 at every microbatch"
        name = "segue" if role is Role.SEGUE else "state dicts"
        axes.plot(microbatches, distance, color=_COLOURS[role], linewidth=width, label=f"{name}: {told}")
    axes.set_ylabel("difference from the\nuninterrupted run", color=_INK)
    axes.set_xlabel("microbatch", color=_INK)
    # Room above the curves, so that the legend hides none of them.
    axes.set_ylim(top=1.45 * max(axes.get_ylim()[1], 1e-6))
    _legend(axes, loc="upper left", ncols=2, fontsize="small")


def _draw_kills(axes: Axes, kills: Sequence[Kill], *, named: bool) -> None:
    for kill in kills:
        axes.axvline(kill.microbatch, color=_INK, linewidth=0.8, linestyle=":", zorder=0)
        if named:
            name = "SIGKILL\nwhile saving" if kill.is_during_save else "SIGKILL"
            axes.annotate(
                name, (kill.microbatch, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                textcoords="offset points", color=_INK, fontsize="x-small", ha="center", va="bottom",
            )  # fmt: skip


def _legend(axes: Axes, **options: Any) -> None:
    axes.legend(labelcolor=_INK, edgecolor="none", framealpha=1.0, borderaxespad=0.1, **options)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#8c959f")
    axes.tick_params(colors=_INK)
    axes.margins(x=0.01)
