"""Sections that are measured page by page, so that an interrupted run goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims_parts.figures import Figure, once, share_of

from documents_parts.bench import Bench, Section

Found = dict[str, Any]
"""What was measured on one page, as JSON values."""

Column = Sequence[float]
"""A value of each page."""


@dataclass(frozen=True)
class PagedSection:
    """A section of the report.

    Args:
        measure: what there is to measure on the page of a number, from 0.
        summary: the section from the pages so far, in order.
    """

    measure: Callable[[Bench, int], Found]
    summary: Callable[[Sequence[Found]], Section]


class PageRows:
    """The measured pages of all sections: a file with one JSON object a line.

    Args:
        file: that is continued.
        weights: what tells the reader from others; its pages are those that count.
        commit: of the code that measures.
    """

    def __init__(self, file: Path, weights: str, commit: str) -> None:
        self.file = file
        self.weights = weights
        self.commit = commit
        self.seconds = 0.0  # of the processor, of all rows
        self._found: dict[tuple[str, int], Found] = {}
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if row["weights"] == weights:
                    self._found[row["section"], row["page"]] = row["found"]
                    self.seconds += row["seconds"]

    def has(self, section: str, page: int) -> bool:
        return (section, page) in self._found

    def add(self, section: str, page: int, found: Found, seconds: float) -> None:
        """Keep what a page gave, in the file, too, and the seconds that it took."""
        self._found[section, page] = found
        self.seconds += seconds
        row: dict[str, Any] = {"section": section, "page": page, "seconds": round(seconds, 3)}
        row |= {"commit": self.commit, "weights": self.weights}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"found": found}) + "\n")

    def of(self, section: str) -> list[Found]:
        """The pages of a section, in order."""
        numbers = sorted(page for name, page in self._found if name == section)
        return [self._found[section, page] for page in numbers]


def paired_ratio(above: Column, below: Column) -> Figure:
    """The ratio of the sums over pages, with the bootstrap's interval; no interval for one page."""
    if len(above) < 2:
        return once(sum(above) / max(sum(below), 1e-9))
    tops = [[value, 1] for value in above]
    bottoms = [[value, 1] for value in below]
    return share_of(tops, bottoms, 0, 1)
