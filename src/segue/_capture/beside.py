"""What an optimizer that is asked for its state whole keeps in attributes: its own, and of torch optimizers and schedulers in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from segue._capture.attributes import MARKS, own_attributes, unsaved_of
from segue._capture.description import Description
from segue._capture.first_seen import First, Seen, has_moved, remembered
from segue._capture.hidden import Hidden
from segue._capture.owners import inner_optimizers, inner_schedulers
from segue._capture.registered import Registered
from segue._capture.state_of import all_names
from segue._capture.views import Views, described, views_of
from segue.errors import UnsupportedState


@dataclass(frozen=True)
class Beside:
    """One attribute."""

    owner: Any
    name: str
    path: str
    """From the optimizer that was handed in."""
    value: Any
    first: First | None
    """What it was when its owner was first seen; `None` if it was not there."""
    is_unsaved: bool
    """Whether its owner is a torch optimizer with torch's `state_dict`, which saves state and options alone."""
    views: Views

    def described(self) -> Description | UnsupportedState:
        """Describe it as a record tells it; return the error if it can't be looked into."""
        return described(self.name, self.value, self.views.told)

    def has_moved(self, description: Description) -> bool:
        """Tell whether it is another than it was."""
        return has_moved(self.first, self.name, self.value, description.tree, self.views)

    def hidden(self, why: str) -> Hidden:
        """Return it as one that would be lost."""
        return Hidden(self.owner, self.name, self.path, why)


def remember_beside(value: Any, names: Mapping[int, str], registered: Registered) -> None:
    """Remember what all these attributes are, as each owner is first seen."""
    _seen(value, _owners(value), names, registered)


def attributes_beside(value: Any, names: Mapping[int, str], registered: Registered) -> list[Beside]:
    """Return the attributes that may hold state; those that are components of their own aside.

    Args:
        value: The optimizer.
        names: Of the parameters of all registered modules, by `id`.
        registered: What else a training restores.
    """
    owners, unsaved = _owners(value), unsaved_of(value)
    ours = unsaved.kept | unsaved.passing
    views, seen = _seen(value, owners, names, registered)
    return [
        Beside(
            owner, name, f"{place}.{name}" if place else name, held, seen[place].attributes.get(name),
            _saves_no_more(owner), views,
        )
        for place, owner in owners.items()
        for name, held in _attributes(owner).items()
        if not registered.keeps(owner, name) and not (owner is value and name in ours)
    ]  # fmt: skip


def _owners(value: Any) -> dict[str, Any]:
    return {"": value, **inner_optimizers(value), **inner_schedulers(value)}


def _saves_no_more(owner: Any) -> bool:
    own: Any = type(owner).state_dict if isinstance(owner, Optimizer) else None
    return own is Optimizer.state_dict and "state_dict" not in vars(owner)


def _attributes(owner: Any) -> dict[str, Any]:
    found = own_attributes(owner) if isinstance(owner, Optimizer) else dict(_held(owner))
    return {name: value for name, value in found.items() if name not in _METHODS}


def _held(owner: Any) -> Iterator[tuple[str, Any]]:
    for name in all_names(owner):
        if name not in MARKS and hasattr(owner, name):
            yield name, getattr(owner, name)


# Some put another function in the place of these, which says how it saves, and nothing of what it is.
_METHODS = frozenset({"state_dict", "load_state_dict"})


def _seen(
    value: Any, owners: Mapping[str, Any], names: Mapping[int, str], registered: Registered
) -> tuple[Views, dict[str, Seen]]:
    views = views_of(owners, names, registered)
    return views, {
        place: remembered(owner, _attributes(owner), views, has_state=False)
        for place, owner in owners.items()
    }
