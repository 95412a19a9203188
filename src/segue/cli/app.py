"""The commands and their options."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.progress import Progress

import segue
from segue.cli import adaptation, comparison, demonstration, forking, inspection, listing
from segue.cli.demo import RUNS, demonstrate, demonstrate_adapters
from segue.cli.exit_codes import ExitCode, exit_code
from segue.cli.terminal import print_error, print_failure, print_json, stdout
from segue.demo.base import BASE
from segue.demo.kills import fewest_microbatches
from segue.demo.process import TrialFailed
from segue.demo.settings import RunSettings
from segue.demo.text import Corpus, read_text
from segue.errors import SegueError

_EXIT_CODES = (
    "Exit codes: 0 fine, 1 differs, 2 usage, 3 mismatch, 4 corrupt, unsafe or unsupported, "
    "5 incomplete or not found, 6 unavailable, full or failed."
)

app = typer.Typer(
    help="Exact training continuation for PyTorch: the same bits, or a precise refusal.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    # Errors of ours are told in a sentence; any other is a bug, whose plain traceback helps most.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
CheckpointPath = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The folder or file of one checkpoint.")
]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
EitherPath = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT|RUN", help="The folder or file of a checkpoint, or of a run for all of its."
    ),
]
SourcePath = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT|RUN", help="The folder or file of a checkpoint; or a run, for its newest."
    ),
]
IntoPath = Annotated[
    str,
    typer.Option(
        "--into", metavar="RUN", help="Where the new run goes: a folder, or a file that ends in .segue."
    ),
]
LeftPath = Annotated[str, typer.Argument(metavar="A", help="The folder or file of a checkpoint.")]
RightPath = Annotated[str, typer.Argument(metavar="B", help="That of another.")]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; see `segue.cli.main`."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="segue")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except SegueError as error:
        print_error(error)
        return exit_code(error)
    return ExitCode.FINE


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"segue {segue.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exact training continuation for PyTorch: the same bits, or a precise refusal."""


def _print(value: Any, rendered: RenderableType, *, json: bool) -> None:
    if json:
        print_json(value)
    else:
        stdout().print(rendered)


@app.command(epilog=_EXIT_CODES)
def inspect(checkpoint: CheckpointPath, json: Json = False) -> None:
    """Show what is in a checkpoint.

    Sections, parameters, optimizer and scheduler position, window, random streams, sizes and environment. Reads the
    manifest, not the data; `segue verify` reads that.

    JSON: path, run, seq, num_file_bytes, files {name: bytes}, kind, step, microbatch, world_size, rank, num_bytes,
    precision {name, num_converted_tensors, num_lossy_tensors},
    sections {name: {num_tensors, num_bytes}}, model, optimizers {name: ...}, opaque_optimizers {name: ...},
    schedulers {name: ...}, gradients,
    window or null, components {name: ...}, streams [names] or null,
    private_streams {path: {kind, aliases}}, caller_state, environment, lineage.
    """
    summary = inspection.inspect_checkpoint(checkpoint)
    _print(summary, inspection.render_inspection(summary), json=json)


@app.command(epilog=_EXIT_CODES)
def verify(path: EitherPath, json: Json = False) -> None:
    """Read every byte of a checkpoint, or of all of a run, and compare it with its checksum.

    The exit code is that of the gravest damage found, 0 if all is intact.

    JSON: path, intact, checkpoints [{name, path, seq, step, microbatch, num_bytes, saved, error or null
    {code, what, where, message}, exit_code}], newest first.
    """
    console = stdout()
    with Progress(console=console, transient=True, disable=json or not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)
        report = listing.verify_any(
            path, lambda done, total: progress.update(task, completed=done, total=total)
        )
    _print(report, listing.render_verification(report), json=json)
    raise typer.Exit(listing.verdict_code(report))


@app.command("list", epilog=_EXIT_CODES)
def list_checkpoints(run: RunPath, json: Json = False) -> None:
    """List the checkpoints of a run, newest first, by their manifests.

    JSON: path, checkpoints [as in `segue verify`], unfinished [names of attempts that were never finished].
    """
    report = listing.list_run(run)
    _print(report, listing.render_list(report), json=json)


@app.command(epilog=_EXIT_CODES)
def diff(
    a: LeftPath,
    b: RightPath,
    json: Json = False,
    limit: Annotated[int, typer.Option(min=0, help="How many differences the table shows.")] = 20,
) -> None:
    """Compare the state in two checkpoints bit by bit; exit 1 if it differs.

    Names the first and the worst difference, with counts and the distance in ulps: how many numbers of the type lie
    between the two.

    JSON: left, right, identical, num_differences, first, worst, differences [{section, path, left, right,
    num_elements, num_differing, first_index, max_absolute, max_ulps}].
    """
    report = comparison.compare_checkpoints(a, b)
    _print(report, comparison.render_comparison(report, limit), json=json)
    raise typer.Exit(ExitCode.FINE if report["identical"] else ExitCode.DIFFERS)


@app.command(epilog=_EXIT_CODES)
def fork(checkpoint: SourcePath, into: IntoPath, json: Json = False) -> None:
    """Begin a new run from an old checkpoint; leave that as it is.

    Of a run, the newest checkpoint that is intact is taken. Every byte is verified before anything is made. Then start the
    program with the new run's path: it resumes, and goes on as the old run would have from there.

    JSON: path, run, checkpoint {path, seq, step, microbatch, num_bytes, attempt}, source {the same, and run or null},
    passed_over [what is wrong with newer checkpoints].
    """
    console = stdout()
    with Progress(console=console, transient=True, disable=json or not console.is_terminal) as progress:
        progress.add_task("copying", total=None)
        report = forking.fork_run(checkpoint, into)
    _print(report, forking.render_fork(report), json=json)


@app.command(epilog=_EXIT_CODES)
def demo(
    text: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Train on this file; by default on a text inside CPython."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat a run: decides weights, data and kills. Random by default."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the picture and the runs go.")] = Path("demo"),
    microbatches: Annotated[
        int, typer.Option(help="How long the training is.")
    ] = RunSettings.num_microbatches,
    adapters: Annotated[
        bool,
        typer.Option(
            "--adapters", help="Train a LoRA adapter over a frozen base, and check its checkpoints."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train, kill, continue and compare: does it go on as if nothing had happened?

    One run is left alone. Another is killed with SIGKILL at three random microbatches, one of them inside a window and
    one while a checkpoint is being written, and continued by segue in new processes. A third is killed at the same
    places and continued from state dicts, as people do today. Exits 0 only if segue's run is bit-identical to the first.

    With `--adapters`, a LoRA adapter is trained over a frozen base instead, in the first two runs only, and no picture is
    drawn. Exits 0 only if, besides, no byte of the base is in a checkpoint, whose files are searched for it, and a base
    that differs in one bit is refused.

    JSON: identical, seed, text, num_microbatches, num_steps, kills [{microbatch, during_save, written_of_checkpoint,
    continued_from, pending_microbatches}], runs {uninterrupted, segue, state-dicts: {num_processes, continued_from,
    num_losses, num_losses_differing, first_differing, largest_difference, num_replayed, num_replayed_differing,
    sections_differing, final_loss, digest, section_digests, seconds}}, picture or null, seconds. With `--adapters` also
    adapter {base, rank, scale, dropout}, checks {base_is_absent {passed, num_checkpoint_bytes, num_base_bytes,
    num_checkpoints, num_searched_bytes, num_base_blocks, num_base_blocks_found, found_in, num_adapter_blocks,
    num_adapter_blocks_found, num_adapter_tensors, names_missing, names_unexpected}, other_base_is_refused {passed,
    difference, error, code, message, changed}, identical {passed}}.
    """
    run = RunSettings(
        text=None if text is None else str(text.resolve()),
        seed=secrets.randbelow(10_000) if seed is None else seed,
        num_microbatches=microbatches,
    )
    _refuse_unusable(run)
    try:
        if adapters:
            report = demonstrate_adapters(run.with_adapter(out / RUNS / BASE), out, json=json)
            code = adaptation.verdict_code(report)
        else:
            report = demonstrate(run, out, json=json)
            code = demonstration.verdict_code(report)
    except TrialFailed as failure:
        print_failure(str(failure))
        raise typer.Exit(ExitCode.FAILED) from failure
    if json:
        print_json(report)
    raise typer.Exit(code)


def _refuse_unusable(run: RunSettings) -> None:
    if run.num_microbatches < fewest_microbatches(run) or run.num_microbatches % run.window_microbatches:
        raise typer.BadParameter(
            f"needs at least {fewest_microbatches(run)}, and whole windows of {run.window_microbatches}",
            param_hint="--microbatches",
        )
    try:
        text = read_text(Path(run.text) if run.text else None)
        Corpus.of(text, context=run.model.context, num_sequences=run.num_sequences, seed=run.seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--text") from error
