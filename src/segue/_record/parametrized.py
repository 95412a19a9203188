"""Weights that a program computes from other tensors: parametrized, normalised or pruned on one side only.

What is trained then isn't the weight, and its optimizer state means something else; a new name for it would be no
remedy. Names tell: torch registers the originals under names of its own (torch 2.13), and a weight is a parameter only
where nothing computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from segue.errors import ContractMismatch, Finding

_PARAMETRIZATIONS = "parametrizations"
# Of `torch.nn.utils.weight_norm`, `spectral_norm` and `prune`: what each adds to the weight's name.
_BY_HOOKS = {
    "normalised by its hooks (weight_norm)": ("_g", "_v"),
    "normalised by its hooks (spectral_norm)": ("_orig", "_u", "_v"),
    "pruned": ("_orig", "_mask"),
}
_PLAIN = "a plain tensor"


def parametrization_findings(
    recorded: Collection[str], live: Collection[str], scope: str
) -> tuple[list[Finding], set[str]]:
    """Return a finding for each weight that is computed otherwise, and the tensors that need none of their own.

    Args:
        recorded: The names of the record's tensors.
        live: Those of the program's.
        scope: What they belong to, for codes.
    """
    before, now = _computed(recorded), _computed(live)
    findings, told = [], set[str]()
    for weight in sorted(before.keys() | now.keys()):
        ours, theirs = (
            computed.get(weight) or ((_PLAIN, {weight}) if weight in names else None)
            for computed, names in ((before, recorded), (now, live))
        )
        if ours is None or theirs is None or ours[0] == theirs[0]:
            continue
        findings.append(Finding(
            ContractMismatch, f"{scope}.parametrized.{weight}", "a weight is computed from other tensors than it was",
            f"{scope} {weight}", ours[0], theirs[0],
            "do to it as when it was captured, before its optimizer is made: what is trained is another tensor otherwise",
        ))  # fmt: skip
        told |= ours[1] | theirs[1]
    return findings, told


def _computed(names: Collection[str]) -> dict[str, tuple[str, set[str]]]:
    """Return by the name of each weight that is computed how it is, and the tensors that belong to that."""
    found: dict[str, tuple[str, set[str]]] = {}
    originals = set()
    for name in names:
        for weight, own in _parametrized(name):
            found.setdefault(weight, ("parametrized", set()))[1].add(name)
            if own.removeprefix("original").isdecimal() or own == "original":
                originals.add(weight)
    found = {weight: item for weight, item in found.items() if weight in originals}
    for how, ends in _BY_HOOKS.items():
        for name in names:
            weight = name.removesuffix(ends[0])
            tensors = {weight + end for end in ends}
            if weight != name and weight not in names and all(tensor in names for tensor in tensors):
                found[weight] = (how, tensors)
    return found


def _parametrized(name: str) -> Iterator[tuple[str, str]]:
    """Yield the weights that a tensor belongs to, each with what it is called there: parametrizations may hold modules."""
    parts = name.split(".")
    for at in range(len(parts) - 2):
        if parts[at] == _PARAMETRIZATIONS:
            yield ".".join((*parts[:at], parts[at + 1])), ".".join(parts[at + 2 :])
