"""Peak memory of an answer by engine of passes, each in a process of its own.

A model of real shape with random weights is made, the peak of the resident memory is reset, and one
prompt is answered: by stock `generate`, by modules and by OpenVINO's passes, in float32 and with 8
bits. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from random_models import random_model
from shared import Benchmark, Report, environment, table

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.verify import run_stock

QUANTIZATIONS = {
    "OpenVINO": None,
    "OpenVINO, int8": "int8",
    "OpenVINO, int8-weights": "int8-weights",
}
WAYS = ("stock generate", "modules", *QUANTIZATIONS)
PROMPT = 500


def in_a_process(way: str) -> dict[str, float]:
    """The figures of one way; options of the command line are passed on."""
    command = [sys.executable, str(Path(sys.argv[0].split()[0])), "memory", *sys.argv[1:]]
    output = subprocess.run([*command, "--way", way], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return figures


def figures(args: argparse.Namespace) -> dict[str, float]:
    """MiB of the weights, of the process before the answer, at the peak, and after it."""
    backbone = Backbone(random_model(args.size, args.layers))
    weights = sum(each.nbytes for each in backbone.model.parameters())
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    ids = torch.arange(PROMPT)[None] + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    if args.way in QUANTIZATIONS:
        attach([backbone], "openvino", quantization=QUANTIZATIONS[args.way])
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


def measure(args: argparse.Namespace) -> Report:
    """The figures of all ways; with `--way` those of this process are printed."""
    if args.way:
        print(json.dumps(figures(args)))
        raise SystemExit(0)
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    return {"environment": facts, "rows": [{"way": way, **in_a_process(way)} for way in WAYS]}


def page(report: Report) -> list[str]:
    """Memory by way."""
    stock = report["rows"][0]["peak"]
    columns: dict[str, Any] = {
        "": "{way}",
        "weights, MiB": "{weights:,.0f}",
        "before the answer": "{before:,.0f}",
        "at the peak": "{peak:,.0f}",
        "after the answer": "{after:,.0f}",
        "peak over stock's": lambda row: f"{row['peak'] / stock:.2f}",
    }
    return [table(report["rows"], columns)]


BENCHMARK = Benchmark(
    "compiled_memory",
    __doc__,
    "Memory of an answer by engine of passes",
    measure,
    page,
    {
        "--layers": 24,
        "--size": "0.5B",
        "--way": {"choices": WAYS, "help": "print the figures of this process only"},
        "--max-new-tokens": 32,
    },
)
