"""Standard output and standard error, and how quantities look there."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from segue.cli.plain import to_json
from segue.errors import SegueError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def stdout() -> Console:
    """Return a console on the current standard output; without colour or motion where that is no terminal."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def stderr() -> Console:
    """Return a console on the current standard error, which never breaks lines: paths stay whole."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print JSON on standard output and nothing else there."""
    sys.stdout.write(to_json(value) + "\n")


def print_error(error: SegueError) -> None:
    """Print an error on standard error: what, where, expected, found and what to do."""
    print_failure(str(error))


def print_failure(message: str) -> None:
    """Print a message on standard error as an error."""
    first, _, rest = message.partition("\n")
    stderr().print(f"[bold red]error:[/] {escape(first)}" + (f"\n{escape(rest)}" if rest else ""))


def size(num_bytes: int) -> str:
    """Render a number of bytes in the largest unit in which it is at least 1."""
    amount, unit = float(num_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{num_bytes} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """Render a number with its noun, `1 tensor` or `2 tensors`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
