"""Passes of a model of real width (random weights), by the modules and by compiled code."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from random_models import by_mkl, random_model
from shared import Benchmark, Case, PrefilledPrompt, Report, environment, median_seconds, table

from compiled_parts import by_modules
from draftlens.models.adapter import Backbone
from draftlens.passes import attach

WIDTHS = (1, 3, 6, 12, 26)
CONTEXT = 300


def measure(args: argparse.Namespace) -> Report:
    """Seconds of passes by width; nothing with `--compile-only`."""
    backbone = Backbone(random_model("1.5B", args.layers))
    attach([backbone], True)
    backbone.passes.prepare()
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    prefilled = PrefilledPrompt.of(backbone, prompt)
    rows = []
    for width in () if args.compile_only else WIDTHS:
        compiled = prefilled.chain_case(width)

        def eager(case: Case = compiled) -> None:
            with by_modules([backbone]):
                case()

        def eager_by_mkl(case: Case = eager) -> None:
            with by_mkl(backbone):
                case()

        cases: dict[str, Case] = {"mkl": eager_by_mkl, "eager": eager, "compiled": compiled}
        rows.append({"width": width, **median_seconds(cases, args.repeats)})
    return {"environment": {**environment(args), "layers": args.layers}, "rows": rows}


def page(report: Report) -> list[str]:
    """Milliseconds and speeds by width."""
    columns: dict[str, Any] = {
        "tokens": "{width}",
        "modules by MKL, ms": "{mkl:.1ms}",
        "modules, ms": "{eager:.1ms}",
        "compiled, ms": "{compiled:.1ms}",
        "times as fast as by MKL": lambda row: f"{row['mkl'] / row['compiled']:.2f}",
        "as modules": lambda row: f"{row['eager'] / row['compiled']:.2f}",
    }
    return [
        table(report["rows"], columns),
        f"Width 1,536 and 8,960, after {CONTEXT} cached tokens, float32.",
    ]


BENCHMARK = Benchmark(
    "compiled_large",
    __doc__,
    "A model of real width",
    measure,
    page,
    {"--repeats": 9, "--layers": 8, "--compile-only": False},
)
