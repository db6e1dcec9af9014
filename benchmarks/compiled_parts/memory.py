"""Peak memory of an answer by engine of passes, each in a process of its own.

A model of real shape with random weights is made, the peak of the resident memory is reset, and one
prompt is answered: by stock `generate`, by modules and by OpenVINO's passes, with and without 8-bit
weights. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import random_model
from shared import argument_parser, configure, environment, environment_line, save

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.verify import run_stock

WAYS = ("stock generate", "modules", "OpenVINO", "OpenVINO, 8-bit weights")
PROMPT = 500

PREDICTION = """Written before the first run, for 24 layers of the 0.5B model in float32, 1.4 GiB of
weights: by modules the peak is that of stock generate within 5%. OpenVINO adds a copy of the
weights, 2.0 times stock's peak in all, and while it compiles another half of that; with 8-bit
weights a quarter of a copy, 1.3 times."""


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/compiled_memory", repeats=1)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--size", default="0.5B")
    parser.add_argument("--way", choices=WAYS, help="print the figures of this process only")
    parser.set_defaults(max_new_tokens=32)
    args = parser.parse_args()
    configure(args.threads)
    if args.way:
        print(json.dumps(measure(args)))
        return
    rows = [{"way": way, **in_a_process(way)} for way in WAYS]
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    prediction = " ".join(PREDICTION.split())
    page = markdown(rows, environment_line(facts), prediction)
    save(args.out, {"environment": facts, "prediction": prediction, "rows": rows}, page)
    print(page)


def in_a_process(way: str) -> dict[str, float]:
    """The figures of one way; options of the command line are passed on."""
    command = [sys.executable, str(Path(sys.argv[0].split()[0])), "memory", *sys.argv[1:]]
    output = subprocess.run([*command, "--way", way], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return figures


def measure(args: argparse.Namespace) -> dict[str, float]:
    """MiB of the weights, of the process before the answer, at the peak, and after it."""
    backbone = Backbone(random_model(args.size, args.layers))
    weights = sum(each.nbytes for each in backbone.model.parameters())
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    ids = torch.arange(PROMPT)[None] + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    if args.way.startswith("OpenVINO"):
        is_draft = args.way != "OpenVINO"
        # The first model of `attach` is the target, the second one the draft.
        target = [Backbone(random_model("tiny", 1))] if is_draft else []
        attach([*target, backbone], "openvino", "int8" if is_draft else None)
    if args.way == WAYS[0]:
        run_stock(backbone, inputs, **options)
    else:
        draftlens.generate(backbone, inputs, method="plain", **options)
    return {
        "weights": weights / 2**20,
        "before": before,
        "peak": resident("VmHWM"),
        "after": resident("VmRSS"),
    }


def resident(field: str) -> float:
    """MiB of a field of the process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{field}:"))
    return float(line.split()[1]) / 1024


def markdown(rows: Sequence[Mapping[str, Any]], facts: str, prediction: str) -> str:
    """The report as a Markdown page."""
    stock = rows[0]["peak"]
    names = ("weights", "before", "peak", "after")
    cells = [
        [row["way"], *(f"{row[name]:,.0f}" for name in names), f"{row['peak'] / stock:.2f}"]
        for row in rows
    ]
    header = (
        "",
        "weights, MiB",
        "before the answer",
        "at the peak",
        "after the answer",
        "peak over stock's",
    )
    table = markdown_table(header, cells, text_columns=(0,))
    lines = ["# Memory of an answer by engine of passes", "", *table, "", f"<sub>{facts}</sub>"]
    return "\n".join([*lines, "", f"Prediction. {prediction}", ""])
