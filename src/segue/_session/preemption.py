"""A flag that signals set. Nothing is saved in a handler: it may interrupt a backward, or the writer itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any


class PreemptionFlag:
    """Becomes true when one of the signals arrives; keeps the program's own handlers and calls them too.

    Args:
        signals: Which; none installs nothing.
    """

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether a signal has arrived."""
        return self._is_set

    def install(self) -> None:
        """Listen from now on. Only the main thread can; elsewhere this does nothing."""
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._on_signal)

    def remove(self) -> None:
        """Put the program's own handlers back, where ours is still the one in place."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                # None stands for a handler that was not installed from Python, which can't be put back.
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_set = True
        previous = self._previous.get(signal.Signals(number))
        if callable(previous):
            previous(number, frame)
