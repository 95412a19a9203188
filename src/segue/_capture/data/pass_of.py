"""One pass over the data, as a `for` loop holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class Counter(Protocol):
    """What counts the batches: a `DataPosition`."""

    def took(self, token: object) -> None:
        """Count a batch that is handed out now."""
        ...

    def failed(self, token: object) -> None:
        """Take notice that fetching a batch raised."""
        ...

    def finished(self, token: object) -> None:
        """Take notice that the pass has ended, or was left."""
        ...

    def refuse_stale(self, token: object) -> None:
        """Raise if the pass was replaced."""
        ...


class Pass(Iterator[Any]):
    """The batches of a pass, counted as they are handed out. Dropped by its loop, it ends the pass."""

    def __init__(self, batches: Iterator[Any], counter: Counter, token: object) -> None:
        self._batches: Iterator[Any] | None = batches
        self._counter = counter
        self._token = token
        self._is_over = False

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        self._counter.refuse_stale(self._token)
        assert self._batches is not None
        try:
            batch = next(self._batches)
        except StopIteration:
            self.close()
            raise
        except BaseException:
            self._counter.failed(self._token)
            raise
        self._counter.took(self._token)
        return batch

    def close(self) -> None:
        """End the pass, if it is the one under way."""
        self._is_over, self._batches = True, None
        self._counter.finished(self._token)

    def drop(self) -> None:
        """Let go of the loader's iterator: another pass, or a restore, has replaced this one."""
        self._batches = None

    def __del__(self) -> None:
        self.close()
