"""`segue inspect`: what is in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from segue._store.archive import open_checkpoint
from segue._store.url import local_path
from segue.cli.lineage import told
from segue.cli.summary import summarize
from segue.cli.terminal import count, size

# Options that tell at a glance how a group trains; the rest is in --json.
_SHOWN_ITEMS = 6
_SHOWN_OPTIONS = ("lr", "weight_decay", "betas", "momentum")
_SHOWN_ENVIRONMENT = (
    "torch", "numpy", "python", "libraries", "cpu_model", "cpu_capability", "num_threads", "compiled", "accelerators",
)  # fmt: skip


def inspect_checkpoint(url: str) -> dict[str, Any]:
    """Sum up a stored checkpoint.

    Raises:
        StoreError: As `segue.load` does.
    """
    with open_checkpoint(local_path(url)) as checkpoint:
        manifest = checkpoint.manifest
        return {
            "path": checkpoint.path,
            "run": manifest.run,
            "seq": manifest.seq,
            "num_file_bytes": checkpoint.info.num_bytes,
            "files": {name: entry.size for name, entry in manifest.files.items()},
            **summarize(checkpoint.record()),
        }


def render_inspection(summary: Mapping[str, Any]) -> RenderableType:
    """Lay out what `inspect_checkpoint` returns, one line for each thing."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in _lines(summary):
        table.add_row(label, text)
    return Group(_title(summary), Text(), table, Text(), _sections(summary["sections"]))


def _title(summary: Mapping[str, Any]) -> Text:
    title = Text(Path(summary["path"]).name, style="bold cyan")
    return title.append(f"  {size(summary['num_file_bytes'])} in {summary['path']}", style="default not bold")


def _lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "position", _position(summary)
    yield (
        "run",
        f"{summary['run'] or 'none: stands alone'}, rank {summary['rank']} of {summary['world_size']}",
    )
    if summary["precision"]["name"] != "native" or summary["precision"]["num_converted_tensors"]:
        yield "precision", _precision(summary["precision"])
    yield "model", _model(summary["model"])
    if summary["model"]["base"]:
        yield "base", _base(summary["model"]["base"])
    for group in summary["model"]["shared"]:
        yield "", escape(("tied: " if group["tied"] else "one storage: ") + " = ".join(group["names"]))
    for name, optimizer in summary["optimizers"].items():
        yield "optimizer", _optimizer(name, optimizer)
        for index, options in enumerate(optimizer["groups"]):
            yield "", _group(index, options)
        if optimizer["attributes"]:
            yield "", escape(f"built with {_shown(optimizer['attributes'])}")
    for name, opaque in summary["opaque_optimizers"].items():
        yield "optimizer", _opaque(name, opaque)
    for name, scheduler in summary["schedulers"].items():
        yield "scheduler", _scheduler(name, scheduler)
    yield "window", _window(summary["window"])
    yield "gradients", _gradients(summary["gradients"])
    for name, component in summary["components"].items():
        yield "component", escape(f"{name}: {component['class']} ({component['kind']})")
    streams = summary["streams"]
    yield "streams", "not captured" if streams is None else escape(", ".join(streams)) or "none"
    for path, stream in summary["private_streams"].items():
        yield "", escape(_private_stream(path, stream))
    yield "caller state", escape(_shown(summary["caller_state"]))
    yield "environment", escape(_environment(summary["environment"]))
    for index, entry in enumerate(summary["lineage"]):
        yield "" if index else "lineage", escape(told(entry))


def _private_stream(path: str, stream: Mapping[str, Any]) -> str:
    also = f", also at {', '.join(stream['aliases'])}" if stream["aliases"] else ""
    return f"{path}: {stream['kind']}{also}"


def _position(summary: Mapping[str, Any]) -> str:
    step, microbatch = summary["step"], summary["microbatch"]
    parts = [] if step is None else [f"step {step:,}"]
    parts += [] if microbatch is None else [f"microbatch {microbatch:,}"]
    return ", ".join([*parts, f"checkpoint {summary['seq']} of its run" if summary["run"] else "an export"])


def _precision(precision: Mapping[str, Any]) -> str:
    lossy = precision["num_lossy_tensors"]
    text = f"{precision['name']}: {count(precision['num_converted_tensors'], 'tensor')} converted"
    return f"{text}, {lossy:,} of them lossy" if lossy else f"{text}, none lossy"


def _model(model: Mapping[str, Any]) -> str:
    elements, trainable = model["num_elements"], model["num_trainable_elements"]
    share = "all trainable" if elements == trainable else f"{trainable:,} trainable"
    text = f"{elements:,} parameters ({share}) in {count(model['num_parameters'], 'tensor')}"
    text += f", {count(model['num_buffers'], 'buffer')}" if model["num_buffers"] else ""
    return f"{text}; {', '.join(model['dtypes'])} on {', '.join(model['devices'])}"


def _base(base: Mapping[str, Any]) -> str:
    omitted = f"{count(base['num_omitted'], 'tensor')} not stored"
    names = {
        "digest": f"{base['identity'][:12]}, by content; {omitted}",
        "declared": f"{base['identity']!r}, as the caller named it; {omitted}",
        "model_state": f"the model is captured by {base['identity']}",
    }
    return escape(names[base["source"]])


def _optimizer(name: str, optimizer: Mapping[str, Any]) -> str:
    text = f"{_short(optimizer['class'])} as {name!r}, state of {count(optimizer['num_parameters_with_state'], 'parameter')}"
    if optimizer["slots"]:
        text += f": {', '.join(optimizer['slots'])}"
    if optimizer["steps"]:
        low, high = optimizer["steps"]
        text += f"; at step {low:,.0f}" + ("" if low == high else f" to {high:,.0f}")
    return escape(text)


def _opaque(name: str, optimizer: Mapping[str, Any]) -> str:
    groups = optimizer["groups"]
    steps = (
        "doesn't say what it steps"
        if groups is None
        else f"steps {count(sum(group['num_parameters'] for group in groups), 'parameter')}"
    )
    return escape(f"{optimizer['class']} as {name!r}, by its own {optimizer['kind']}; {steps}")


def _group(index: int, group: Mapping[str, Any]) -> str:
    options = group["options"]
    named = [f"{name} {_shown(options[name])}" for name in _SHOWN_OPTIONS if name in options]
    return escape(f"group {index}: {count(group['num_parameters'], 'tensor')}, {', '.join(named)}")


def _scheduler(name: str, scheduler: Mapping[str, Any]) -> str:
    children = [_short(child["class"]) for child in scheduler["children"]]
    text = _short(scheduler["class"]) + (f" of {', '.join(children)}" if children else "")
    text += f" as {name!r}, drives {scheduler['optimizer']!r}"
    if scheduler["last_epoch"] is not None:
        text += f"; moved {scheduler['last_epoch']} times"
    if scheduler["outstanding_steps"]:
        text += f", {count(scheduler['outstanding_steps'], 'optimizer step')} since"
    return escape(text)


def _window(window: Mapping[str, Any] | None) -> str:
    if window is None:
        return "no accumulator"
    of = window["window_microbatches"]
    filled = f"{window['microbatches']}" + (f" of {of}" if of else "")
    text = f"{filled} microbatches, {window['kind']}, sums in {window['dtype']}"
    if not window["microbatches"]:
        return f"{text}: between two windows"
    return f"{text}: weight {window['total_weight']:g}, {_gradients(window['sums'])}"


def _gradients(gradients: Mapping[str, int]) -> str:
    if not gradients["num_tensors"]:
        return "none pending"
    return f"{count(gradients['num_tensors'], 'tensor')} pending, {size(gradients['num_bytes'])}"


def _environment(environment: Mapping[str, Any]) -> str:
    named = [
        f"{name.replace('_', ' ')} {_shown(environment[name])}"
        for name in _SHOWN_ENVIRONMENT
        if environment.get(name)
    ]
    return ", ".join(named)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown = [_shown(item) for item in value[:_SHOWN_ITEMS]]
        more = [f"... {len(value)} in all"] if len(value) > _SHOWN_ITEMS else []
        return "(" + ", ".join([*shown, *more]) + ")"
    return str(value)


def _short(class_name: str) -> str:
    return class_name.rpartition(".")[2]


def _sections(sections: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("section")
    table.add_column("tensors", justify="right")
    table.add_column("size", justify="right")
    for name, section in sections.items():
        style = None if section["num_tensors"] else "dim"
        table.add_row(name, f"{section['num_tensors']:,}", size(section["num_bytes"]), style=style)
    return table
