"""The command `segue`: `demo`, `inspect`, `verify`, `diff`, `list`, `fork`.

`app` has the commands, `exit_codes` what they tell a shell; each command has a module that makes plain data, the shape
that `--json` prints, and one function that renders it for people. Only this package imports typer and rich.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Without the program's name; by default those of the process.

    Returns:
        0 fine, 1 differs, 2 usage, 3 mismatch, 4 corrupt, unsafe or unsupported, 5 incomplete or not found,
        6 unavailable, full or failed.
    """
    from segue.cli.app import run

    return run(arguments)
