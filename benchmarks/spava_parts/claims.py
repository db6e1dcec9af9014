"""The paper's claims with a verdict each, from the reports of the other parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table

from draftlens.core.files import write_json, write_text
from spava_parts import judged_accuracy, judged_speed
from spava_parts.verdicts import FEWEST, Reports, Verdict

JUDGES: tuple[Callable[[Reports], list[Verdict]], ...] = (
    judged_speed.speed,
    judged_accuracy.accuracy,
    judged_speed.system,
    judged_accuracy.lengths,
    judged_speed.links,
    judged_speed.work,
    judged_accuracy.passed_on,
    judged_accuracy.others,
)
"""All claims of the issue."""


def main() -> None:
    """Judge, and write the report."""
    args = parse()
    reports = Reports(args.reports)
    verdicts = []
    for judge in JUDGES:
        verdicts += judge(reports)
    verdicts.sort(key=lambda verdict: verdict.claim)
    report = {
        "commits": reports.commits(),
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(args.out.with_suffix(".json"), report, indent=None)
    write_text(args.out.with_suffix(".md"), page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spava_claims"))
    parser.add_argument("--reports", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    commits = ", ".join(f"{part} {commit[:7]}" for part, commit in report["commits"].items())
    lines = ["# Claims about SPAVA", "", f"From the reports of these commits: {commits}.", ""]
    lines += [
        "Numbers are those of the issue: 1 speed, 2 VNBench, 3 LongVideoBench and hosts, 4 "
        "counting, 5 optimizations, 6 l_p and l_a, 7 links, 8 work and figure 8, 9 FastV and "
        "RULER; M is what the issue says of the method. Figures of the paper are in brackets. A "
        f"verdict on accuracy needs {FEWEST} prompts, a full prefill that is right in more than "
        "half of them beyond doubt, and a difference that the sign test shows at 5%: it holds if "
        "SPAVA does not lose against full and the other one does, and fails if SPAVA does. All "
        "accuracy is of the embedded target in its world, none of the paper's models.",
        "",
    ]
    rows = []
    for verdict in report["verdicts"]:
        rows.append([verdict["claim"], verdict["said"], verdict["verdict"], verdict["figures"]])
    columns = ["claim", "said", "verdict", "figures"]
    return "\n".join([*lines, *markdown_table(columns, rows, text_columns=(0, 1, 2, 3)), ""])
