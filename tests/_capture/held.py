"""Copies that wait until they are let go: what happens in between happens every time."""

import threading

from segue._capture.transfer import HostTransfer


class Held:
    """Begins copies on the CPU that end only after `release()`."""

    def __init__(self):
        self.begun = []
        self._released = threading.Event()

    def __call__(self, tensor):
        self.begun.append(tensor)
        return _HeldTransfer(tensor, self._released)

    def release(self):
        self._released.set()

    def release_soon(self):
        """Release while the caller waits: without this, a `step` would wait for ever."""
        threading.Timer(0.01, self.release).start()


class _HeldTransfer(HostTransfer):
    def __init__(self, tensor, released):
        super().__init__(tensor)
        self._released = released

    def finish(self):
        assert self._released.wait(60)
        super().finish()


class Failing(HostTransfer):
    def finish(self):
        raise MemoryError("no memory for the copy")
