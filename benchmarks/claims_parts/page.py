"""The page of claims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from draftlens_lab.measure.tables import markdown_table

from . import history, hsd, ours, parallelvlm, spava, specvlm, tabed
from .claim import FAILS, HOLDS, MISSING, OPEN, RESULTS, Claim, Judged, Paper, judge, load, part_of
from .commands import name_of, recorded

PAPERS: Sequence[Paper] = (
    specvlm.PAPER,
    parallelvlm.PAPER,
    tabed.PAPER,
    hsd.PAPER,
    spava.PAPER,
    ours.PAPER,
)

INTRODUCTION = """# Claims

Every claim of the five papers, and our own, with the command that measures it. Verdicts are
computed from the result files by `python -m benchmarks.claims`, which writes this page from the
table in `benchmarks/claims_parts`.

A claim **holds** if the whole 95% interval of each figure lies within its bounds, and **does not
hold** if one lies outside, corrected for the number of figures of its row (Bonferroni). Otherwise
it cannot be shown here, and the row says why. Computed figures replay printed tables or count work;
the others are of the small models in this package, so verdicts are about these and not about the
papers' models.

Commands have letters, and take two CPU cores and one thread; minutes stand where the result has
them, or at least those of its answers. A result is stale if the method's code or the weights have
changed. `--quick` runs small versions in under 15 minutes, whose intervals are of few clips, and
flags the rows that disagree; `--run` runs the commands whose results are stale or missing, and
prints before it starts how many hours each needs. `--target NAME --draft NAME --clips FOLDER`
measures the rows that depend on a pair on yours, and writes a page of its verdicts."""

COLUMNS = (
    "",
    "claim",
    "paper",
    "command",
    "expected",
    "seen",
    "verdict",
    "measured at",
)


def page() -> str:
    """The page as Markdown."""
    lines = [INTRODUCTION, "", *summary(), ""]
    for paper in PAPERS:
        lines += [f"## {paper.title}", "", paper.about, "", *listed_commands(paper), ""]
        rows = [row(paper, judge(claim)) for claim in paper.claims]
        lines += [*markdown_table(COLUMNS, rows, text_columns=range(len(COLUMNS))), ""]
    return "\n".join(lines)


def summary() -> list[str]:
    """Verdicts by paper."""
    rows = []
    for paper in PAPERS:
        counts = Counter(judge(claim).verdict for claim in paper.claims)
        numbers = [str(counts[verdict]) for verdict in (HOLDS, FAILS, OPEN, MISSING)]
        rows.append([paper.title, *numbers])
    return markdown_table(["rows", HOLDS, FAILS, OPEN, MISSING], rows)


def listed_commands(paper: Paper) -> list[str]:
    """Letter, minutes and command."""
    found = {claim.command: minutes(claim) for claim in paper.claims}
    return [
        f"- {letter}{f', {found[command]} min' * bool(found[command])}: `{command}`"
        for command, letter in letters(paper).items()
    ]


def letters(paper: Paper) -> dict[str, str]:
    """The letter of each command of a section."""
    commands = dict.fromkeys(claim.command for claim in paper.claims if claim.command)
    return dict(zip(commands, ascii_uppercase, strict=False))


def row(paper: Paper, judged: Judged) -> list[str]:
    claim = judged.claim
    verdict = f"**{judged.verdict}**" if judged.verdict in (HOLDS, FAILS) else judged.verdict
    if judged.reason:
        verdict += f": {judged.reason}"
    if claim.checks and claim.why:
        verdict += f" ({claim.why})"
    return [
        claim.number,
        claim.says,
        claim.place,
        letters(paper).get(claim.command, ""),
        expected(judged),
        "; ".join(seen(judged)),
        verdict,
        measured_at(paper, judged),
    ]


def minutes(claim: Claim) -> str:
    """Those of the processor when the command was run last, what it says itself, what its result
    file says, or at least those of the answers in it."""
    if claim.command in recorded():
        return f"{recorded()[claim.command]:.0f}"
    limit = re.search(r"--minutes (\d+)", claim.command)
    if limit or not claim.checks:
        return limit[1] if limit else ""
    check = claim.checks[0]
    report = load(RESULTS, check.file) or {}
    seconds = report.get("seconds")
    if "minutes" in report:
        seconds = 60 * report["minutes"]
    if isinstance(seconds, float):
        return f"{seconds / 60:.0f}"
    least = seconds_of_answers(part_of(check, report) or report) / 60
    return f"> {least:.0f}" if least >= 1 else ""


def seconds_of_answers(found: Any, is_time: bool = False) -> float:
    """The sum of everything below keys `e2e`."""
    if isinstance(found, Mapping):
        return sum(seconds_of_answers(each, is_time or key == "e2e") for key, each in found.items())
    if isinstance(found, list):
        return sum(seconds_of_answers(each, is_time) for each in found)
    return float(found) if is_time and isinstance(found, (int, float)) else 0.0


def expected(judged: Judged) -> str:
    """The paper's figure, then the bounds that decide."""
    bounds = list(dict.fromkeys(check.bounds for check in judged.claim.checks))
    decides = f"here: {', '.join(bounds)}" if bounds else ""
    return "; ".join(filter(None, (judged.claim.paper, decides)))


def seen(judged: Judged) -> list[str]:
    return [
        f"{check.label}: {figure.text(check.form)}"
        for check, figure in zip(judged.claim.checks, judged.seen, strict=True)
        if figure is not None
    ]


def measured_at(paper: Paper, judged: Judged) -> str:
    """Commits of the results; what git says of them is in `sub`, see `without_marks`."""
    found: dict[str, str] = {}
    for check in judged.claim.checks:
        report = load(RESULTS, name_of(check.file))
        if report is None:
            continue
        commit = history.commit_of(check, report)
        name = ", ".join(filter(None, (commit, history.processor_of(check, report))))
        found[name] = history.marks(judged.claim, paper, commit)
    return "; ".join(f"{name} <sub>{marks}</sub>" for name, marks in found.items() if name)


def without_marks(text: str) -> str:
    """The page without what depends on the history of the checkout."""
    return re.sub(r" ?<sub>.*?</sub>", "", text)
