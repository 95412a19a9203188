"""A flag that signals set. Nothing is saved in a handler: it may interrupt a backward, or the writer itself.

What does not work: putting the previous handler back and forgetting ours. Whoever installed a handler in between
holds ours as *its* previous one, and a forked child inherits it; both would swallow the signal for good. So a flag
that no longer listens, or runs in another process, passes the signal on to what was there before it.
"""

from __future__ import annotations

import os
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
        self._previous: dict[int, Any] = {}
        self._listens = False
        self._process = os.getpid()
        self._arrived: int | None = None
        self._noticed = False

    @property
    def is_set(self) -> bool:
        """Whether a signal has arrived. Whoever asks and hears yes is taken to end the program."""
        self._noticed = self._noticed or self._arrived is not None
        return self._arrived is not None

    def install(self) -> None:
        """Listen from now on. Only the main thread can; elsewhere this does nothing."""
        if threading.current_thread() is not threading.main_thread() or self._listens:
            return
        self._listens = True
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._on_signal)

    def remove(self) -> None:
        """Put the program's own handlers back, where ours is still the one in place.

        A signal that nobody has asked about is sent again, to them: it came after the last boundary.
        """
        if threading.current_thread() is not threading.main_thread() or not self._listens:
            return
        self._listens = False
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, _installable(previous))
        if self._arrived is not None and not self._noticed:
            self._noticed = True
            os.kill(os.getpid(), self._arrived)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous.get(number)
        if not self._listens or os.getpid() != self._process:
            _pass_on(previous, number, frame)
            return
        self._arrived = number
        if callable(previous):
            previous(number, frame)


def _installable(previous: Any) -> Any:
    # None stands for a handler that was not installed from Python, which can't be put back.
    return signal.SIG_DFL if previous is None else previous


def _pass_on(previous: Any, number: int, frame: FrameType | None) -> None:
    """Do what would have been done without us."""
    if callable(previous):
        previous(number, frame)
    elif previous != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
