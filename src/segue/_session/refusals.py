"""What is done about differences: refused together, admitted by their codes, or warned of."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from torch import nn

from segue._capture.environment import check_environment, why
from segue._capture.uncovered_frames import stacklevel
from segue._record.training import RECORD_VERSION, TrainingRecord
from segue.errors import EnvironmentWarning, Finding, MismatchError, UnsupportedFormat, admitting, shown, some


def refuse_other_version(record: TrainingRecord) -> None:
    """Raise `UnsupportedFormat` for a record of a version that this code does not know."""
    if record.version != RECORD_VERSION:
        raise UnsupportedFormat(
            "a record of another version", where="record", expected=RECORD_VERSION, found=record.version
        )


def entries_in(accept: Collection[str]) -> frozenset[str]:
    """Return the entries of `accept=`, which may be any iterable of codes.

    Raises:
        TypeError: If it is something else.
    """
    return frozenset(strings_in(accept, "accept", "codes"))


def strings_in(values: Collection[str], argument: str, what: str) -> tuple[str, ...]:
    """Return the strings of an argument that takes several.

    Args:
        values: Any iterable of strings.
        argument: The name of the argument.
        what: What its strings are, in the plural.

    Raises:
        TypeError: If it is one string, or holds something else.
    """
    if isinstance(values, str):
        raise TypeError(f"{argument} takes a collection of {what}; did you mean {argument}=[{values!r}]?")
    entries = tuple(values)
    for entry in entries:
        if not isinstance(entry, str):
            raise TypeError(f"{argument} takes {what}, which are strings, not {entry!r}")
    return entries


def refuse(findings: list[Finding], accept: Collection[str]) -> list[Finding]:
    """Raise for all findings that are not accepted; return the accepted ones.

    Raises:
        MismatchError: With every remaining finding.
    """
    entries = set(accept)
    admit = {code: entries.intersection(admitting(code)) for code in {finding.code for finding in findings}}
    named = {code for code, by in admit.items() if by}
    admitted = [finding for finding in findings if finding.admissible and finding.code in named]
    if len(admitted) < len(findings):
        refused = [finding for finding in findings if not (finding.admissible and finding.code in named)]
        error = MismatchError.of(
            [_told_in_vain(finding) if finding.code in named else finding for finding in refused]
        )
        unknown = sorted(entries.difference(*admit.values()))
        if unknown:
            error.add_note(f"accept: no difference has the code {some([repr(entry) for entry in unknown])}")
        raise error
    return admitted


def refuse_all(findings: Iterable[Finding]) -> None:
    """Raise for all findings where none can be accepted.

    Raises:
        MismatchError: With every finding, if there is any.
    """
    refused = [replace(finding, admissible=False) for finding in findings]
    if refused:
        raise MismatchError.of(refused)


def _told_in_vain(finding: Finding) -> Finding:
    why = "this difference can't be accepted"
    return replace(finding, hint=f"{finding.hint}; {why}" if finding.hint else why)


def environment_findings(
    record: TrainingRecord, modules: Mapping[str, nn.Module] | None = None
) -> list[Finding]:
    """Return what differs in the environment, and in which of these modules run compiled."""
    return list(check_environment(record.environment, modules))


def warn_of_environment(findings: Iterable[Finding]) -> None:
    """Warn if something differs that can change the last bits from here on."""
    differences = [
        f"{item.code}: {shown(item.expected)} -> {shown(item.found)} ({why(item.code.removeprefix('environment.'))})"
        for item in findings
    ]
    if differences:
        warnings.warn(
            "the state is restored exactly, but the environment differs in what can change the last bits from here on: "
            + "; ".join(differences),
            EnvironmentWarning,
            stacklevel=stacklevel(),
        )
