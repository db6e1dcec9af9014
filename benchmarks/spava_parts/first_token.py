"""Seconds to the first token by one process and by two, one thread each."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from shared import (
    argument_parser,
    backbones,
    caption_sample,
    configure,
    environment,
    environment_line,
    rotated,
    sample_inputs,
    save,
)

from draftlens import load
from draftlens.api import Engine, Inputs
from draftlens.core.hosts import ALONE
from draftlens.distributed import start
from draftlens.measure.tables import markdown_table

PREDICTION = """\
Written before the first run. Language-model FLOPs at 16,001 visual tokens promise two processes 2.0
(ring) and 5.5 (spava, 4 blocks), 7.0 with 16 blocks, and one process with 16 blocks 3.5. Rank 0
encodes all frames itself, about a tenth of the whole, so two processes reach 1.8, 3.6 and 4.1, one
process with 16 blocks 2.7. At 1,025 tokens nothing is gained: vision and the linear layers are
nearly everything, and collecting keys and values costs a few milliseconds."""

FRAMES = {1025: 64, 4097: 256, 16001: 1000}
"""Frames by number of visual tokens."""

FEW = {"name": "spava", "blocks": 4}

CASES: Mapping[str, tuple[int, Any]] = {
    "full": (1, "full"),
    "spava, 4 blocks": (1, FEW),
    "spava, 16 blocks": (1, "spava"),
    "ring, 2 processes": (2, "ring"),
    "spava, 4 blocks, 2 processes": (2, FEW),
    "spava, 16 blocks, 2 processes": (2, "spava"),
}
"""Number of processes and prefill by name. Two threads of one process are the same cores: run the
part again with ``--threads 2 --processes 1``."""


def main() -> None:
    """Time first tokens, interleaved, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    target, _ = backbones(engine)
    hosts = start(target, 2, args.threads) if args.processes > 1 else ALONE
    rows = []
    for length in args.lengths:
        inputs = sample_inputs(engine, caption_sample(0), FRAMES[length])
        cases = {name: case for name, case in CASES.items() if case[0] <= args.processes}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for repeat in range(-1, args.repeats):
            for name, (processes, prefill) in rotated(list(cases.items()), repeat + 1):
                target.hosts = hosts if processes > 1 else ALONE
                seconds = first_token(engine, inputs, prefill)
                if repeat >= 0:
                    runs[name].append(seconds)
        rows += [summary(name, length, runs) for name in cases]
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_first_token", repeats=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[*FRAMES], choices=[*FRAMES])
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    return parser.parse_args()


def first_token(engine: Engine, inputs: Inputs, prefill: Any) -> dict[str, float]:
    """Seconds to the first token, and of its phases."""
    stats = engine.answer(inputs, prefill=prefill, max_new_tokens=1).run().stats
    phases = stats.phases
    return {
        "first": stats.ttft,
        "vision": phases.get("vision", 0.0),
        "prefill": phases.get("target_prefill", 0.0),
    }


def summary(name: str, length: int, runs: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians of a case, and the quartiles of its ratio to the full prefill by one process."""
    ratios = []
    for run, full in zip(runs[name], runs["full"], strict=True):
        ratios.append(full["first"] / run["first"])
    medians = {}
    for phase in ("first", "vision", "prefill"):
        medians[phase] = statistics.median(run[phase] for run in runs[name])
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"case": name, "length": length, "speedup": quartiles, **medians}


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    rows = []
    for row in report["rows"]:
        low, middle, high = row["speedup"]
        seconds = [f"{row[phase]:.2f}" for phase in ("vision", "prefill", "first")]
        speedup = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        rows.append([f"{row['length']:,}", row["case"], *seconds, speedup])
    columns = ["visual tokens", "case", "vision", "prefill", "first token", "over full"]
    lines = ["# The first token", "", environment_line(report["environment"]), ""]
    lines += ["## Prediction", "", report["prediction"], "", "## Seconds", ""]
    lines += [*markdown_table(columns, rows, text_columns=(1,)), ""]
    return "\n".join(lines)
