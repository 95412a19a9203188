"""A random generator that is handed in by itself: it has no `state_dict`, and nothing that was handed in leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segue._capture.generators import is_generator


class SingleStream:
    """A component around a random generator, which is captured and restored as every other that can be reached.

    Args:
        generator: The generator. It is kept, not copied.
    """

    _called_in_paths: Mapping[str, str] = {"generator": ""}

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def capture(self) -> None:
        """Return nothing: the stream is found by walking, and stands among the private ones."""

    def check(self, state: Any) -> Iterator[str]:
        """Yield nothing: the stream is compared where it stands."""
        yield from () if state is None else ("it is not what is recorded of a generator",)

    def restore(self, state: Any) -> None:
        """Do nothing: streams are put back last of all."""


def with_single_streams(components: Mapping[str, Any]) -> dict[str, Any]:
    """Put every component that is a random generator into one that can be asked."""
    return {name: SingleStream(value) if is_generator(value) else value for name, value in components.items()}
