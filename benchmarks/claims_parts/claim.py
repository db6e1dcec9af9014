"""What a claim is, and how its verdict follows from figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .figures import Figure

HOLDS = "holds"
FAILS = "does not hold"
OPEN = "cannot be shown here"
MISSING = "not measured"

RESULTS = Path("benchmarks/results")

MANY = 10_000
"""Samples beyond which their number says no more."""

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One figure that a claim is judged by.

    Args:
        label: what the figure is.
        file: name of the result file, without suffix.
        read: the figure in the file's JSON.
        above, below: the claim holds if the whole interval lies beyond these, and does not hold if
            the whole interval lies on the other side of one of them, wider by the number of the
            claim's checks (`Figure.among`).
        form: how the figure is written.
        part: key of the part whose environment names the commit, or several keys with slashes
            between them; empty for that of the file.
    """

    label: str
    file: str
    read: Callable[[Report], Figure]
    above: float | None = None
    below: float | None = None
    form: str = ".2f"
    part: str = ""

    def outcome(self, figure: Figure) -> str:
        """`HOLDS`, `FAILS`, or `OPEN` if the interval includes a bound or there is none."""
        if figure.interval is None:
            return OPEN
        low, high = figure.interval
        if (self.above is not None and high < self.above) or (
            self.below is not None and low > self.below
        ):
            return FAILS
        inside = (self.above is None or low > self.above) and (
            self.below is None or high < self.below
        )
        return HOLDS if inside else OPEN

    def agrees(self, figure: Figure) -> bool:
        """Whether the estimate alone is where the claim expects it."""
        return (self.above is None or figure.value > self.above) and (
            self.below is None or figure.value < self.below
        )

    @property
    def bounds(self) -> str:
        sides = [
            f"{word} {100 * bound:g}%" if self.form.endswith("%") else f"{word} {bound:g}"
            for word, bound in (("above", self.above), ("below", self.below))
            if bound is not None
        ]
        return " and ".join(sides)


@dataclass(frozen=True)
class Claim:
    """One row of the page.

    Args:
        number: in the list of its paper.
        place: table, figure or section of the paper.
        says: the claim in one sentence.
        paper: the figure of the paper; empty for claims of our own.
        command: measures it, from the root of the repository.
        checks: what it is judged by; none if it cannot be shown here.
        why: why it cannot be shown here, or what to know of the figures.
        quick: options in place of those of the command for a small run that writes OUT; empty for
            none.
        code: folder or files, with spaces between them, whose changes make a result stale; the
            folder of the paper if empty.
        weights: file of weights that figures depend on; None for that of the paper, empty for none.
    """

    number: str
    place: str
    says: str
    paper: str = ""
    command: str = ""
    checks: tuple[Check, ...] = ()
    why: str = ""
    quick: str = ""
    code: str = ""
    weights: str | None = None


@dataclass(frozen=True)
class Paper:
    """The claims of a paper.

    Args:
        title: of the section.
        code: folder of the method.
        weights: file of the weights that most figures depend on.
        about: one paragraph below the title.
    """

    title: str
    code: str
    weights: str
    claims: tuple[Claim, ...] = field(repr=False)
    about: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict.

    Args:
        verdict: `HOLDS`, `FAILS`, `OPEN` or `MISSING`.
        reason: why it cannot be shown, empty for the first two.
        seen: the figures by check; None where there is no file.
    """

    claim: Claim
    verdict: str
    reason: str
    seen: tuple[Figure | None, ...]


@cache
def load(folder: Path, name: str) -> Report | None:
    """A result file, or None; of a file of lines, `rows`."""
    file = folder / (name if name.endswith(".jsonl") else f"{name}.json")
    if not file.exists():
        return None
    text = file.read_text()
    if name.endswith(".jsonl"):
        return {"rows": [json.loads(line) for line in text.splitlines()]}
    report: Report = json.loads(text)
    return report


@cache
def judge(claim: Claim, folder: Path = RESULTS) -> Judged:
    """The verdict from the figures of the result files."""
    seen = tuple(figure_of(check, load(folder, check.file)) for check in claim.checks)
    if not claim.checks:
        return Judged(claim, OPEN, claim.why, seen)
    missing = [check for check, figure in zip(claim.checks, seen, strict=True) if figure is None]
    if missing:
        what = f"{missing[0].part} in " if missing[0].part else ""
        return Judged(claim, MISSING, f"there is no {what}`{missing[0].file}.json` yet", seen)
    known = [(check, figure) for check, figure in zip(claim.checks, seen, strict=True) if figure]
    outcomes = [check.outcome(figure) for check, figure in known]
    # A claim holds if all of its checks do, and any of them refutes it: only that errs more often
    # with their number.
    if FAILS in [check.outcome(figure.among(len(known))) for check, figure in known]:
        return Judged(claim, FAILS, "", seen)
    if {OPEN, FAILS}.isdisjoint(outcomes):
        return Judged(claim, HOLDS, "", seen)
    return Judged(claim, OPEN, "; ".join(_doubts(known)), seen)


def figure_of(check: Check, report: Report | None) -> Figure | None:
    """The figure of a report; None if it or its part has not been measured."""
    if report is None or part_of(check, report) is None:
        return None
    return check.read(report)


def part_of(check: Check, report: Report) -> Report | None:
    """The part that a check names; None if it has not been measured."""
    found: Any = report
    for key in check.part.split("/") if check.part else ():
        if key not in found:
            return None
        found = found[key]
    part: Report = found
    return part


def _doubts(known: list[tuple[Check, Figure]]) -> list[str]:
    """Why checks decide nothing, each reason once."""
    reasons: dict[str, list[str]] = {}
    for check, figure in known:
        if (outcome := check.outcome(figure)) != HOLDS:
            if outcome == FAILS:
                reason = f"one of {len(known)} figures, and within chance of so many"
            elif figure.interval is not None:
                reason = "the interval includes a bound" + _would_decide(check, figure)
            elif check.agrees(figure):
                reason = "the figure agrees, but its file has no interval"
            else:
                reason = "the figure disagrees, but its file has no interval"
            reasons.setdefault(reason, []).append(check.label)
    if len(known) == 1:
        return list(reasons)
    return [f"{reason} ({'; '.join(labels)})" for reason, labels in reasons.items()]


def _would_decide(check: Check, figure: Figure) -> str:
    """How many clips, prompts or repeats would decide, to two digits."""
    needed = figure.needed([bound for bound in (check.above, check.below) if bound is not None])
    if needed is None:
        return ""
    if needed > MANY:
        return f"; over {MANY:,} samples in place of {figure.count} would decide"
    rounded = f"{float(f'{needed:.2g}'):,.0f}"
    return f"; {rounded} samples in place of {figure.count} would decide"
