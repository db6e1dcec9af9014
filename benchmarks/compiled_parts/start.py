"""The second start of `compile=True`, with code on disk, beside a start without."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

PREDICTION = """Written before the first run: compiled passes are ready 0.1 to 0.3 s after the
models in the second start."""

ANSWERS = 8

_CHILD = """
import json, sys, time
import torch
torch.set_num_threads(1)
import draftlens
from draftlens.passes.inductor.engine import library_of
mode, answers = sys.argv[1], int(sys.argv[2])
engine = draftlens.load(calibrate=False)
began = time.perf_counter()
engine.compile(mode == "yes")
ready = time.perf_counter() - began
seconds, tokens = [], []
inputs = engine.read("Describe the video.", video=sys.argv[3], num_frames=8)
method = {"num_speculative_tokens": 5}
for _ in range(answers):
    began = time.perf_counter()
    result = engine.answer(inputs, method=method, max_new_tokens=320).run()
    tokens.append(result.stats.ttft)
    seconds.append(time.perf_counter() - began)
labels = [model.backbone.passes.label for model in (engine.target, engine.draft)]
print(json.dumps({"ready": ready, "seconds": seconds, "tokens": tokens, "labels": labels}))
"""


def main() -> None:
    args = argument_parser(__doc__, "benchmarks/results/compiled_start", repeats=3).parse_args()
    configure(args.threads)
    runs: dict[str, list[Any]] = {"no": [], "yes": []}
    # What the user's own cache folder holds, or comes to hold now.
    started("yes", 1)
    for _ in range(args.repeats):
        for mode, results in runs.items():
            results.append(started(mode, ANSWERS))
    report = {"environment": environment(args), "prediction": PREDICTION, "runs": runs}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def started(mode: str, answers: int) -> dict[str, Any]:
    """What a fresh process measures.

    Args:
        mode: `yes` or `no`, whether passes are compiled.
        answers: number of answers.
    """
    clip = Path("draftlens/embedded/clips/shapes.mp4")
    command = [sys.executable, "-c", _CHILD, mode, str(answers), str(clip)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    rows = []
    for mode, runs in report["runs"].items():
        ready = statistics.median([run["ready"] for run in runs])
        token = statistics.median([run["tokens"][0] for run in runs])
        first = statistics.median([run["seconds"][0] for run in runs])
        all_answers = statistics.median([sum(run["seconds"]) for run in runs])
        labels = runs[-1]["labels"]
        seconds = [f"{value:.2f}" for value in (ready, token, first, all_answers)]
        rows.append([mode, *seconds, "; ".join(labels)])
    columns = (
        "compile",
        "ready after loading, s",
        "first token of the first answer, s",
        "first answer, s",
        f"{ANSWERS} answers, s",
        "compiled at the end: target; draft",
    )
    paragraphs = [
        "# Second start",
        "\n".join(markdown_table(columns, rows, text_columns=(0, len(columns) - 1))),
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"
