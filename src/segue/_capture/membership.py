"""Which recorded group is which live one: by their members, since a group has no name and its place moves.

Names that both sides have decide. A group that has none of them is new, or gone: its members came or went, which
is told of each by name and can be wanted. Everything that is left is another partition, and no state can be put into it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from segue._capture.options import difference
from segue._record.contract import moved
from segue._record.tree import same
from segue.errors import Finding, shown, some

Groups = Sequence[Sequence[str]]
"""The members of each group by name, in order."""


def match_groups(recorded: Groups, live: Groups) -> list[int | None] | None:
    """Find for each live group the recorded one with the same members, as far as both sides have them.

    Returns:
        The index of the recorded group for each live one, `None` where all of its members are new; or `None` alone if
        members that both sides have are divided up otherwise.
    """
    before, now = Counter(chain(*recorded)), Counter(chain(*live))
    if max([*before.values(), *now.values()], default=1) > 1:
        return None  # a record made by hand, or read from a file that lies
    by_members: dict[frozenset[str], int] = {}
    for index, members in enumerate(recorded):
        by_members[frozenset(name for name in members if name in now)] = index
    empty = deque(index for index, members in enumerate(recorded) if not members)
    gone = deque(
        index for index, members in enumerate(recorded) if members and now.keys().isdisjoint(members)
    )
    places: list[int | None] = []
    for members in live:
        common = frozenset(name for name in members if name in before)
        if common:
            place = by_members.get(common)
            if place is None:
                return None
        elif members:
            place = empty.popleft() if len(empty) > _count_empty(live) else None
        elif empty or gone:
            place = (empty or gone).popleft()
        else:
            return None
        places.append(place)
    return None if empty else places


def _count_empty(groups: Groups) -> int:
    return sum(not members for members in groups)


def are_strangers(recorded: Groups, live: Groups, explained: frozenset[str]) -> bool:
    """Tell whether two optimizers have no parameter in common that both sides know: one took the other's name."""
    before, now = set(chain(*recorded)), set(chain(*live))
    return bool(before and now) and before.isdisjoint(now) and not (before | now) <= explained


def one_sided_findings(
    recorded: Groups,
    live: Groups,
    explained: frozenset[str],
    scope: str,
    *,
    admissible: bool,
    options: Sequence[str] = (),
) -> Iterator[Finding]:
    """Yield the parameters that only one side's groups have, between groups that `match_groups` could pair.

    Args:
        recorded: The recorded groups.
        live: Those of the program.
        explained: Names of parameters that one side does not have at all, which is told of its module.
        scope: The optimizer, for codes.
        admissible: Whether state goes by name, so that one may come or go.
        options: What was asked for each recorded group alone, as from `own_options`.
    """
    before, now = set(chain(*recorded)), set(chain(*live))
    if not admissible:
        explained = frozenset()
    odd = [*_strange(recorded, now), *_strange(live, before)]
    if len(recorded) != len(live) and not all(explained.issuperset(members) for members in odd):
        yield difference(
            scope, "groups", "another number of groups", scope, len(recorded), len(live),
            hint=groups_hint(recorded, live, scope, "optimizers", options), admissible=admissible,
        )  # fmt: skip
    yield from _names_on_one_side(recorded, live, (before ^ now) - explained, scope, admissible)


def _strange(groups: Groups, others: set[str]) -> Iterator[Sequence[str]]:
    """Yield the groups none of whose members the other side has."""
    return (members for members in groups if members and others.isdisjoint(members))


def membership_findings(
    recorded: Groups, live: Groups, scope: str, section: str = "optimizers", options: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield which parameters are in other groups than they were, or on one side only, where nothing can be paired.

    Args:
        recorded: The members of each recorded group by name.
        live: Those of each live group.
        scope: The optimizer, for codes.
        section: Where in a record it is.
        options: What was asked for each recorded group alone, as from `own_options`.
    """
    before, after = _places(recorded), _places(live)
    if len(recorded) != len(live):
        yield difference(
            scope, "groups", "another number of groups", scope, len(recorded), len(live),
            hint=groups_hint(recorded, live, scope, section, options),
        )  # fmt: skip
    yield from _names_on_one_side(recorded, live, before.keys() ^ after.keys(), scope, admissible=False)
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield difference(
                scope, f"group.{name}", "it is in another group", f"{scope} {name}",
                _told(before[name]), _told(after[name]),
            )  # fmt: skip


def _names_on_one_side(
    recorded: Groups, live: Groups, names: set[str], scope: str, admissible: bool
) -> Iterator[Finding]:
    before, after = _places(recorded), _places(live)
    for name in sorted(names):
        if name in before:
            told = difference(
                scope, f"missing.{name}", "a parameter is in no group", f"{scope} {name}",
                f"group {before[name][0]}", "absent", admissible=admissible, when_accepted="drops its state",
            )  # fmt: skip
        else:
            told = difference(
                scope, f"extra.{name}", "a parameter was in no group", f"{scope} {name}", "absent",
                f"group {after[name][0]}", admissible=admissible, when_accepted="begins it as the program made it",
            )  # fmt: skip
        yield told


def _places(groups: Groups) -> dict[str, list[int]]:
    """Return where each name stands: more than one place in a record made by hand, or read from a file that lies."""
    places: dict[str, list[int]] = {}
    for index, members in enumerate(groups):
        for name in members:
            places.setdefault(name, []).append(index)
    return places


def _told(places: list[int]) -> int | list[int]:
    return places[0] if len(places) == 1 else places


def own_options(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Write down what a group was asked for that its optimizer's defaults don't say, such as `lr=0.001`."""
    own = [key for key, value in options.items() if key not in defaults or not same(value, defaults[key])]
    return ", ".join(f"{key}={shown(options[key])}" for key in own)


def groups_hint(
    recorded: Groups, live: Groups, scope: str, section: str, options: Sequence[str] = ()
) -> str | None:
    """Say how a program gets the groups that the record has: `add_param_group` in mid-run is not in its first lines."""
    name = scope.removeprefix("optimizer.")
    longer, shorter = (recorded, live) if len(recorded) > len(live) else (live, recorded)
    known = [set(members) for members in shorter]
    own = options if longer is recorded and options else [""] * len(longer)
    odd = [
        f"group {index} ({some(members)})" + (f" with {own[index]}" if own[index] else "")
        for index, members in enumerate(longer)
        if set(members) not in known
    ]
    if not odd:
        return None
    if longer is live:
        return f"{' and '.join(odd)} came later than the record: resume first, then `add_param_group`"
    return (
        f"{' and '.join(odd)} must be there before the restore: build the groups that "
        f'`checkpointer.newest().{section}["{name}"].groups` names, then resume'
    )


def order_findings(
    recorded: Groups, live: Groups, places: Sequence[int | None], scope: str, *, admissible: bool
) -> Iterator[Finding]:
    """Yield groups, and members of them, that stand in another order than they did; what is new or gone aside."""
    paired = [place for place in places if place is not None]
    if paired != sorted(paired):
        yield difference(
            scope, "group_order", "the groups are in another order; each one's options follow its members",
            scope, sorted(paired), paired, admissible=admissible,
        )  # fmt: skip
    for index, place in enumerate(places):
        if place is None:
            continue
        both = set(recorded[place]) & set(live[index])
        before, after = ([name for name in names if name in both] for names in (recorded[place], live[index]))
        if before != after:
            what = "the parameters are in another order" + ("; state follows the name" if admissible else "")
            yield difference(
                scope, "order", what,
                f"{scope} group {index}: {moved(before, after)}", before, after, admissible=admissible,
            )  # fmt: skip
