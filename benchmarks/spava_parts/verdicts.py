"""Verdicts on claims, and what they are drawn from: the reports of the other parts.

A verdict on accuracy needs a full prefill that is well above chance, and a difference that the
prompts can show. The sign test compares two ways on the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

PARTS = ("fidelity", "selection", "counts", "first_token", "decode", "model")
"""Reports that are read, those of them that exist."""

HOLDS = "holds"
FAILS = "fails"
OPEN = "not decided"
NOT_HERE = "cannot be tested here"

ABLE = 0.5
"""Lower end of the full prefill's interval from which on a cell counts. Answers are words of a
large vocabulary, so chance is far below."""

FEWEST = 20
"""Prompts from which on a cell counts."""

LEVEL = 0.05
"""Of the sign test."""

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One statement of the paper or the issue.

    Args:
        claim: its number in the issue; letters for parts of it, M for what it says of the method.
        said: what is claimed.
        verdict: of `HOLDS`, `FAILS`, `OPEN` and `NOT_HERE`.
        figures: ours, or why there are none.
    """

    claim: str
    said: str
    verdict: str
    figures: str


class Reports:
    """The reports of the other parts.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._found: dict[str, Any] = {}
        for part in PARTS:
            file = folder / f"spava_{part}.json"
            if file.exists():
                self._found[part] = json.loads(file.read_text())

    def commits(self) -> dict[str, str]:
        """The commit of each report."""
        return {part: found["environment"]["commit"] for part, found in self._found.items()}

    def of(self, part: str) -> Any:
        """A report, or None."""
        return self._found.get(part)

    def cell(self, family: str, way: str, visual: int = 1025, kept: int = 0) -> Cell | None:
        """Figures of one way in the cell with most prompts."""
        report = self._found.get("fidelity") or {"cells": []}
        wanted = {"family": family, "way": way, "visual": visual, "kept": kept}
        fitting = [cell for cell in report["cells"] if wanted.items() <= cell.items()]
        return max(fitting, key=lambda cell: int(cell["prompts"]), default=None)


def chance_of(lost: int, won: int) -> float:
    """Probability of a split at least as uneven if losing and winning are equally likely."""
    total = lost + won
    tail = sum(comb(total, count) for count in range(min(lost, won) + 1))
    return min(1.0, 2 * tail / float(2**total))


def loses(cell: Cell) -> bool:
    """Whether a way answers fewer prompts rightly than the full prefill, by the sign test."""
    return cell["lost"] > cell["won"] and chance_of(cell["lost"], cell["won"]) < LEVEL


def decides(full: Cell | None) -> bool:
    """Whether a cell can show a difference."""
    return full is not None and full["prompts"] >= FEWEST and full["interval"][0] > ABLE


def in_words(name: str, cell: Cell | None) -> str:
    """A way's answers and distributions."""
    if cell is None:
        return f"{name}: not measured"
    words = f"{name} {100 * cell['right']:.0f}%"
    if name == "full":
        low, high = cell["interval"]
        return f"{words} ({100 * low:.0f} to {100 * high:.0f}, {cell['prompts']} prompts)"
    words += f" (lost {cell['lost']}, won {cell['won']}"
    if "kl" in cell:
        words += f", KL {cell['kl']:.3f}"
    return f"{words})"


def compared(reports: Reports, family: str, ways: tuple[str, ...], **where: int) -> str:
    """Several ways of one cell as a sentence."""
    parts = [in_words(way, reports.cell(family, way, **where)) for way in ("full", *ways)]
    return f"{family}: {', '.join(parts)}"


def keeps_and_drops(reports: Reports, family: str, keeps: str, drops: str, **where: int) -> str:
    """Whether one way keeps the full prefill's answers and another one does not."""
    kept = reports.cell(family, keeps, **where)
    dropped = reports.cell(family, drops, **where)
    if not decides(reports.cell(family, "full", **where)) or kept is None or dropped is None:
        return OPEN
    if loses(kept):
        return FAILS
    return HOLDS if loses(dropped) else OPEN
