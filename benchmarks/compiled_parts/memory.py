"""Peak memory of loading a model and of an answer by engine of passes, each in its own process.

A model of real shape with random weights is written to a folder in bfloat16, as checkpoints are.
Every way reads it, in float32 or with rounded weights, and answers one prompt. Linux only. The peak
has the pages of the checkpoint that are mapped while it is read, which the system may drop; the
peak of the process's own pages is looked at 20 times a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from random_models import random_model
from shared import Benchmark, Report, environment, table
from transformers import AutoModelForImageTextToText

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.passes.quantization import rounding_engine
from draftlens.verify import run_stock

QUANTIZATIONS = {
    "OpenVINO": None,
    "OpenVINO, int8": "int8",
    "OpenVINO, int8-weights": "int8-weights",
    "OpenVINO, int4": "int4",
    "OpenVINO, int4-weights": "int4-weights",
}
WAYS = ("stock generate", "modules", *QUANTIZATIONS)
PROMPT = 500


def in_a_process(way: str, folder: str) -> dict[str, float]:
    """The figures of one way; options of the command line are passed on."""
    command = [sys.executable, str(Path(sys.argv[0].split()[0])), "memory", *sys.argv[1:]]
    command += ["--way", way, "--folder", folder]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return figures


def figures(args: argparse.Namespace) -> dict[str, float]:
    """MiB of the process before loading, at the peak, and after the answer, and of its own pages at
    their peak; seconds to the first token."""
    with own_peak() as own:
        return {**answered(args), "own": own[0]}


@contextmanager
def own_peak() -> Iterator[list[float]]:
    """A list with one number: the peak so far of the process's own pages, in MiB."""
    peak, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], resident("RssAnon"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def answered(args: argparse.Namespace) -> dict[str, float]:
    before = resident("VmRSS")
    quantization = QUANTIZATIONS.get(args.way)
    config = None if quantization is None else rounding_engine("openvino", quantization).loading()
    began = time.perf_counter()
    model = AutoModelForImageTextToText.from_pretrained(
        args.folder, dtype=torch.float32, quantization_config=config
    )
    loaded = time.perf_counter() - began
    backbone = Backbone(model)
    ids = torch.arange(PROMPT)[None] + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {"do_sample": False}
    compile: bool | str = False
    if args.way in QUANTIZATIONS:
        compile = "openvino" if quantization is None else "auto"  # which leaves rounded passes
        attach([backbone], "openvino", quantization=quantization)
    ready = time.perf_counter() - began
    for tokens in (1, args.max_new_tokens):
        options["max_new_tokens"] = tokens
        if args.way == WAYS[0]:
            run_stock(backbone, inputs, **options)
        else:
            draftlens.generate(backbone, inputs, method="plain", compile=compile, **options)
        if tokens == 1:
            first = time.perf_counter() - began
    return {
        "before": before,
        "peak": resident("VmHWM"),
        "after": resident("VmRSS"),
        "loaded": loaded,
        "ready": ready,
        "first": first,
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
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(args.size, args.layers)
        facts["parameters"] = sum(each.numel() for each in model.parameters())
        model.bfloat16().save_pretrained(folder)
        del model
        # Each way twice: the graph is on disk the second time.
        rows = [
            {"way": way, "cold": in_a_process(way, folder), **in_a_process(way, folder)}
            for way in WAYS
        ]
    return {"environment": facts, "rows": rows}


def page(report: Report) -> list[str]:
    """Memory and seconds by way."""
    stock = report["rows"][0]
    columns: dict[str, Any] = {
        "": "{way}",
        "peak, MiB": "{peak:,.0f}",
        "after the answer": "{after:,.0f}",
        "own pages at their peak": lambda row: f"{row['own']:,.0f}" if "own" in row else "",
        "peak over stock's": lambda row: f"{row['peak'] / stock['peak']:.2f}",
        "after the answer, over stock's": lambda row: f"{row['after'] / stock['after']:.2f}",
        "seconds to the first token, no graph on disk": lambda row: f"{row['cold']['first']:.1f}",
        "graph on disk": "{first:.1f}",
        "of these, loading": "{loaded:.1f}",
    }
    facts = report["environment"]
    return [
        table(report["rows"], columns),
        f"{facts['parameters'] / 1e9:.2f} billion parameters in bfloat16 on disk, a prompt of "
        f"{PROMPT} tokens. The process has {stock['before']:,.0f} MiB before it loads.",
    ]


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
        "--folder": {"default": "", "help": "the checkpoint that `--way` reads"},
        "--max-new-tokens": 32,
    },
)
