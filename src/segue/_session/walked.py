"""The live objects of a training at one moment: walked once, looked at many times.

Walking a model of thousands of layers takes as long as checking it, and a restore asks for names a dozen times.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields

from torch import nn

from segue._capture.naming import NamedTensor
from segue._capture.registered import Registered
from segue._session.live import LiveTraining


class _Walked(LiveTraining):
    def tensors(self) -> Iterator[tuple[str, NamedTensor]]:
        return iter(self._tensors)

    def parameters(self) -> dict[str, nn.Parameter]:
        return self._parameters

    def registered(self) -> Registered:
        return self._registered

    @functools.cached_property
    def _tensors(self) -> list[tuple[str, NamedTensor]]:
        return list(super().tensors())

    @functools.cached_property
    def _parameters(self) -> dict[str, nn.Parameter]:
        return super().parameters()

    @functools.cached_property
    def _registered(self) -> Registered:
        return super().registered()


def walked_once(live: LiveTraining) -> LiveTraining:
    """Return the same objects, for who asks several times and lets nothing change meanwhile."""
    return _Walked(**{item.name: getattr(live, item.name) for item in fields(live)})
