"""Print the matrix of what was found exact, wherever a whole one was run: at the end of `make exact`."""

from __future__ import annotations

import pytest

from tests.exactness.matrix import Table, reported

# A sample has fewer rows, and is nobody's answer to what is covered.
_WHOLE = 30


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # A failed row is a line too. Only calls of tests have reported rows.
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [
        p for report in reports if getattr(report, "when", "") == "call" for p in report.user_properties
    ]
    for name, rows in reported(properties).items():
        if len(rows) > _WHOLE:
            terminalreporter.section(name)
            for line in Table(name, rows).lines():
                terminalreporter.write_line(line)
