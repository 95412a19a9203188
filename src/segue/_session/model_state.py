"""What of a model is captured, as the caller writes it down: all of it, or its trainable part beside a named base.

`bound_model` makes of a setting what captures, checks and restores a live model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from segue._capture.component import Component
from segue._capture.naming import NamedTensor
from segue._record.base import BaseIdentity
from segue.errors import UnsupportedState

NameFilter = str | Collection[str] | Callable[[str], bool]
"""Names: patterns as of a shell (`*.bias`), one or several, or a function that tells."""


@dataclass(frozen=True)
class FullModel:
    """Capture the whole model: every parameter and every buffer. The default of `Training(model_state=...)`."""


@dataclass(frozen=True)
class TrainableOnly:
    """Capture what is trained, and name the frozen base that it needs: for adapters, and for towers that stand still.

    Left out is what is frozen and still has the bytes of the base. Kept is everything else: trainable parameters; what
    was trained and is frozen since; adapters of peft, active or not; buffers that training changes, such as the
    statistics of a BatchNorm in a frozen base; what lies in one memory with something that is kept.

    Args:
        base: What the base is: `segue.base_identity(model)`, which compares every byte of it at restore, or a string of
            your own (`"llama-3-8b@1f2e"`), which is compared as text and vouches for the rest.
        trainable: Names of the parameters that are trained. They are kept, frozen or not, and one of others that
            requires grad is refused at capture. By default whatever requires grad.
        omit: Names of tensors that may be left out, such as `"vision_tower.*"`; everything else is kept, frozen or not.
            By default all.
        keep: Names of tensors that are kept in any case.

    Raises:
        UnsupportedState: If `base` is neither, or an empty string, or a filter is none. By `Training`: if a pattern fits no
            tensor of the model.

    Guarantees:
        The base is never copied, moved, written to or held. A record is refused (`BaseMismatch`) where a tensor that it
        left out has other bytes than here, and where an adapter would compute with another rank, scale or dropout, or
        another one is active.

    Cost:
        One read of the base in each process, for its identity.
    """

    base: BaseIdentity | str
    trainable: NameFilter | None = None
    omit: NameFilter | None = None
    keep: NameFilter | None = None

    def __post_init__(self) -> None:
        """Refuse what names no base, and filters that are none."""
        if not isinstance(self.base, BaseIdentity | str) or (
            isinstance(self.base, str) and not self.base.strip()
        ):
            raise UnsupportedState(
                "the omitted base must be named", code="model_state.base", where="TrainableOnly(base=...)",
                expected="segue.base_identity(model), or a string that is not empty", found=self.base,
            )  # fmt: skip
        for name in ("trainable", "omit", "keep"):
            _refuse_no_filter(name, getattr(self, name))


def _refuse_no_filter(name: str, value: Any) -> None:
    is_filter = value is None or callable(value) or isinstance(value, str)
    if not is_filter and not (isinstance(value, Collection) and all(isinstance(item, str) for item in value)):
        raise UnsupportedState(
            "a filter is patterns of names, or a function", code="model_state.filter", where=f"TrainableOnly({name}=...)",
            found=value,
        )  # fmt: skip


def matches(names: NameFilter | None, item: NamedTensor, default: bool) -> bool:
    """Tell whether any name of a tensor is meant; `default` where there is no filter."""
    if names is None:
        return default
    if callable(names):
        return any(names(alias) for alias in item.aliases)
    patterns = [names] if isinstance(names, str) else names
    return any(fnmatchcase(alias, pattern) for alias in item.aliases for pattern in patterns)


ModelState = FullModel | TrainableOnly | Component
