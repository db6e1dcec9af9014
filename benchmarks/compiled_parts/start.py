"""The second start of `compile=True`, with code on disk, beside a start without."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared import Benchmark, Report, table

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


def measure(args: argparse.Namespace) -> Report:
    """Runs of fresh processes by mode."""
    runs: dict[str, list[Any]] = {"no": [], "yes": []}
    # What the user's own cache folder holds, or comes to hold now.
    started("yes", 1)
    for _ in range(args.repeats):
        for mode, results in runs.items():
            results.append(started(mode, ANSWERS))
    return {"runs": runs}


def page(report: Report) -> list[str]:
    """Medians by mode."""
    rows = [
        {
            "mode": mode,
            "ready": statistics.median(run["ready"] for run in runs),
            "token": statistics.median(run["tokens"][0] for run in runs),
            "first": statistics.median(run["seconds"][0] for run in runs),
            "all": statistics.median(sum(run["seconds"]) for run in runs),
            "labels": "; ".join(runs[-1]["labels"]),
        }
        for mode, runs in report["runs"].items()
    ]
    columns = {
        "compile": "{mode}",
        "ready after loading, s": "{ready:.2f}",
        "first token of the first answer, s": "{token:.2f}",
        "first answer, s": "{first:.2f}",
        f"{ANSWERS} answers, s": "{all:.2f}",
        "compiled at the end: target; draft": "{labels}",
    }
    return [table(rows, columns)]


BENCHMARK = Benchmark("compiled_start", __doc__, "Second start", measure, page, {"--repeats": 3})
