"""The matrix that `make exact` prints: which test reported which row, joined to one line for each configuration.

A test reports a row as the property `matrix`, which also arrives from another worker; see `reported`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypedDict

PROPERTY = "matrix"
EXACT = "exact"
# Of the library that has the class: what it refuses runs nowhere here, and is no hole.
REFUSES = " refuses: "
HOLE = "NO ANSWER"


Row = TypedDict("Row", {"class": str, "options": str, "dtype": str, "cut": str, "verdict": str})
Rows = dict[str, list[Row]]
"""The rows of each table."""


def property_of(table: str, row: Row) -> tuple[str, dict[str, Any]]:
    """Return the property of a test that reports a row: `record_property(*property_of(...))`."""
    return PROPERTY, {"table": table, "row": row}


def reported(properties: Iterable[tuple[str, Any]]) -> Rows:
    """Collect the rows among the properties of tests."""
    rows: Rows = {}
    for name, value in properties:
        if name == PROPERTY:
            rows.setdefault(value["table"], []).append(value["row"])
    return rows


class Table:
    """One table: a line for each class and its options, a column for each dtype."""

    def __init__(self, name: str, rows: list[Row]) -> None:
        self.name = name
        self.dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
        names = dict.fromkeys((row["class"], row["options"]) for row in rows)
        self.names = sorted(names, key=lambda name: name[0].lower())  # workers report in any order
        self.verdicts: dict[tuple[str, str, str], dict[str, str]] = {}
        for row in rows:
            cuts = self.verdicts.setdefault((row["class"], row["options"], row["dtype"]), {})
            # Where a sample is part of the whole too, what went wrong in one of the two is said.
            if cuts.get(row["cut"], EXACT) == EXACT:
                cuts[row["cut"]] = row["verdict"]

    def cell(self, name: tuple[str, str], dtype: str) -> str:
        """Return the verdict of a configuration: one for all cuts, or each with its cut."""
        cuts = self.verdicts.get((*name, dtype))
        if not cuts:
            return HOLE
        if len(set(cuts.values())) == 1:
            return next(iter(cuts.values()))
        return "; ".join(f"{cut}: {verdict}" for cut, verdict in cuts.items())

    def lines(self) -> list[str]:
        """Return the table as text, its totals last."""
        head = ("class", "options", *self.dtypes)
        body = [(*name, *(self.cell(name, dtype) for dtype in self.dtypes)) for name in self.names]
        widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
        written = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (head, *body)]
        return [*written, self.totals()]

    def totals(self) -> str:
        cells = [self.cell(name, dtype) for name in self.names for dtype in self.dtypes]
        refused = [found[1] for cell in cells if (found := re.match(rf"(\w+){REFUSES}", cell))]
        exact = sum(cell == EXACT for cell in cells)
        text = f"{self.name}: {exact} of {len(cells) - len(refused)} runnable configurations exact"
        by = " or ".join(sorted(set(refused)))
        return f"{text}, {len(refused)} that {by} refuses here" if refused else text
