"""Which checkpoints may go: a pure function."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def expired(seqs: Sequence[int], keep_last: int | None, protected: Collection[int]) -> list[int]:
    """Return the numbers of the checkpoints that a run no longer keeps, oldest first.

    Args:
        seqs: All that the run has, in any order, the one just written among them.
        keep_last: How many of the newest stay; `None` keeps all.
        protected: Never returned, and not counted: the one just written stays whatever `keep_last` is.
    """
    if keep_last is None:
        return []
    newest_first = sorted(set(seqs), reverse=True)
    return sorted(seq for seq in newest_first[keep_last:] if seq not in protected)
