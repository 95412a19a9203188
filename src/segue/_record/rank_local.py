"""A part of a record that only the rank it came from understands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from segue._record.embedded import Embedded, admit


@dataclass(frozen=True, eq=False)
class RankLocal:
    """One rank's own state, such as its slice of sharded optimizer state, beside state of any other kind.

    It goes through capture, storage and restore unopened, as one of `groups` or anywhere in `model_state`, and its
    owner restores it with its own means. Two are equal if they are one object.

    Source of the idea: the inner-backend record of the seeds, which lets slices of one parallel scheme stand in one
    tuple with ordinary optimizer records.

    Args:
        inner: The state: any object while it is in memory; to be stored, what `segue.save` takes as `groups`.
        convert: Called as `convert(inner, precision)` where a record is converted to another precision, once for each
            conversion, and returns the inner state in that precision. Without one the inner state stays native. A
            function is never stored: after loading there is none.

    Guarantees:
        `inner` is the object that was given: not copied, not looked at, not converted by anyone else.
    """

    inner: Any
    convert: Callable[[Any, Any], Any] | None = None

    def converted(self, precision: Any) -> RankLocal:
        """Return this state in a precision, by its own converter, called once; without one, itself.

        Args:
            precision: As of `segue.save`; handed to the converter as it is.
        """
        return self if self.convert is None else replace(self, inner=self.convert(self.inner, precision))


admit(
    RankLocal,
    Embedded("rank_local", lambda value: value.inner, lambda tree, _path: RankLocal(tree), is_opened=True),
)
