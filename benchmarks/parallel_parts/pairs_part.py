"""The part `pairs`: everything in virtual time, with predictions, tables and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from shared import argument_parser, configure, environment, environment_line, save

from . import pairs, recorded, rule, verdicts

OUTCOME = """TODO"""


def main() -> None:
    """Measure, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/parallel_pairs", repeats=1)
    args = parser.parse_args()
    configure(args.threads)
    found = measure()
    facts = environment(args)
    page = "\n".join([*report(found), "", f"<sub>{environment_line(facts)}</sub>", ""])
    save(args.out, {"found": found, "environment": facts}, page)


def measure() -> dict[str, Any]:
    """All figures, predictions and verdicts."""
    found = pairs.measure()
    print("pairs done", flush=True)
    cells = recorded.measure()
    print("recorded cells done", flush=True)
    return {
        "prediction": [pairs.PREDICTION, recorded.PREDICTION, rule.PREDICTION],
        "outcome": OUTCOME,
        "pairs": found,
        "recorded": cells,
        "rule": rule.measure(),
        "verdicts": [asdict(verdict) for verdict in verdicts.judge(found)],
    }


def report(found: Mapping[str, Any]) -> list[str]:
    """The page."""
    return [
        "# Draft and target at the same time, in virtual time",
        "",
        "## Verdicts",
        "",
        *verdicts.report([verdicts.Verdict(**values) for values in found["verdicts"]]),
        "",
        "## The five pairs of the paper",
        "",
        *pairs.report(found["pairs"]),
        "",
        "## Recorded costs and acceptance of real weights",
        "",
        *recorded.report(found["recorded"]),
        "",
        "## The rule for the pace",
        "",
        *rule.report(found["rule"]),
        "",
        "## Predictions and outcome",
        "",
        *(" ".join(text.split()) + "\n" for text in found["prediction"]),
        "Outcome. " + " ".join(found["outcome"].split()),
    ]
