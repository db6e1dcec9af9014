"""What a pass costs by its number of tokens: by the model's modules, by them with MKL alone, by
OpenVINO, and by OpenVINO with 8-bit weights (a draft's).

The models have the layers of real ones and random weights; a pass reads all of them once, whatever
its width, so the cost of one token is the bound for a few.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from random_models import by_mkl, random_model
from shared import WARM_UPS, Benchmark, Case, PrefilledPrompt, Report, environment, rotated, table

from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.passes import attach
from draftlens.passes.openvino import OpenVinoPasses

NAMES = {
    "modules": "modules",
    "mkl": "MKL alone",
    "openvino": "OpenVINO",
    "int8": "OpenVINO int8",
}
WIDTHS = (1, 2, 3, 4, 6, 9, 16, 26)
CONTEXT = 300


def median_cpu_seconds(
    backbone: Backbone, engines: Mapping[str, Passes], forward: Case, args: argparse.Namespace
) -> dict[str, float]:
    """Medians of this process's CPU time, which others that use the cores lengthen less than they
    do the time on the clock. With one thread both are the same on an idle machine."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(WARM_UPS + args.repeats):
        for name, passes in rotated(list(engines.items()), number):
            backbone.passes = passes
            with by_mkl(backbone) if name == "mkl" else nullcontext():
                start = time.process_time()
                forward()
            if number >= WARM_UPS:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def seconds_by_width(
    backbone: Backbone,
    engines: Mapping[str, Passes],
    widths: Sequence[int],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """`median_cpu_seconds` of chains of these widths after `CONTEXT` tokens."""
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    prefilled = PrefilledPrompt.of(backbone, prompt)
    return [
        {
            "width": width,
            **median_cpu_seconds(backbone, engines, prefilled.chain_case(width), args),
        }
        for width in widths
    ]


def measure(args: argparse.Namespace) -> Report:
    """Seconds of passes by width and engine."""
    backbone = Backbone(random_model(args.size, args.layers))
    engines: dict[str, Passes] = {"modules": EAGER, "mkl": EAGER}
    starts = {}
    for name, quantization in (("openvino", None), ("int8", "int8")):
        # The first model of `attach` is the target, the second one the draft.
        attach([backbone, backbone] if quantization else [backbone], "openvino", quantization)
        engines[name] = backbone.passes
        assert isinstance(backbone.passes, OpenVinoPasses)
        starts[name] = {"seconds": backbone.passes.seconds, "stored": backbone.passes.is_stored}
    rows = seconds_by_width(backbone, engines, WIDTHS, args)
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    return {"environment": facts, "starts": starts, "rows": rows}


def page(report: Report) -> list[str]:
    """Milliseconds, costs over one token, and speeds."""
    first, facts = report["rows"][0], report["environment"]
    columns: dict[str, Any] = {"tokens": "{width}"}
    for name, title in NAMES.items():
        columns[f"{title}, ms"] = f"{{{name}:.1ms}}"
    for name, title in NAMES.items():
        columns[f"{title}, cost over one token"] = partial(ratio_cell, name, first[name])
    columns["OpenVINO: times as fast as modules"] = lambda row: (
        f"{row['modules'] / row['openvino']:.2f}"
    )
    columns["OpenVINO: int8 over float32"] = lambda row: f"{row['int8'] / row['openvino']:.2f}"
    starts = ", ".join(
        f"{start['seconds']:.1f} s ({name}, {'graph on disk' if start['stored'] else 'traced'})"
        for name, start in report["starts"].items()
    )
    return [
        table(report["rows"], columns),
        f"Layers of Qwen2.5 {facts['size']} ({facts['layers']} of them), random weights, float32, "
        f"after {CONTEXT} cached tokens; CPU time of the process, medians. Ready after {starts} on "
        "the clock.",
    ]


def ratio_cell(name: str, first: float, row: Mapping[str, float]) -> str:
    """A cost over that of one token."""
    return f"{row[name] / first:.2f}"


BENCHMARK = Benchmark(
    "compiled_engines",
    __doc__,
    "Passes by OpenVINO",
    measure,
    page,
    {"--repeats": 9, "--layers": 24, "--size": "0.5B"},
)
