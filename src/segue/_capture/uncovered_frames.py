"""The frames of a program that are running: what their variables are called, read without changing them.

CPython 3.11 and 3.12 show the variables of a running function as a dictionary that belongs to its frame, filled anew when it
is asked for and kept until the function returns. Left as it is, it would keep a batch alive that the function has let go
of. So it is emptied again, unless somebody else holds it: `locals()` of the program is this very dictionary, and a debugger
writes back from it. From 3.13 on there is nothing to empty.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from segue._capture.function_code import is_library_path

_KEEPS_A_COPY = sys.version_info < (3, 13)
_NOBODY_ELSE = 3  # references: the frame's, our variable, the argument of `getrefcount`


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """Return the variables of a frame in a dictionary of our own."""
    shown = frame.f_locals
    found = dict(shown)
    is_copy = _KEEPS_A_COPY and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if (
        is_copy
        and sys.gettrace() is None
        and frame.f_trace is None
        and sys.getrefcount(shown) <= _NOBODY_ELSE
    ):
        shown.clear()
    return found


def program_frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yield a frame and those that called it, from the inside out, but for those of installed libraries and of segue."""
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def caller(depth: int = 1) -> types.FrameType | None:
    """Return the innermost frame of the program that led here."""
    return next(program_frames(sys._getframe(depth)), None)


def stacklevel() -> int:
    """Return how far up the program is, as `warnings.warn` counts from the function that calls this."""
    target, frame, level = caller(), sys._getframe(1), 1
    while frame is not target and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


@functools.lru_cache(maxsize=4096)
def _is_library(path: str) -> bool:
    return is_library_path(path)
