"""Seconds to the first token by the library that multiplies many rows (`docs/products.md`).

    python benchmarks/prompts.py
    python benchmarks/prompts.py --sizes  # the clips only; other rows of the report stay

Stock `generate`, whose products are MKL's, and plain decoding with MKL's products and with those of
the faster library, interleaved: random weights of real shapes with prompts of words, and the
embedded target with clips, whose vision tower and processor are included.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest import mock

import torch
from random_models import random_model
from shared import (
    Benchmark,
    Report,
    caption_sample,
    environment,
    range_line,
    ratios,
    report_of,
    rotated,
    sample_inputs,
    table,
)

import draftlens
from draftlens.models import products as onednn_many_rows
from draftlens.models.adapter import Backbone
from draftlens.verify import run_stock

SIZES = {"0.5B": 24, "1.5B": 28}
"""Layers by size."""

LENGTHS = (150, 600, 1500)
FRAMES = (16, 64)
NEVER = 10**30
WAYS = ("stock generate", "plain, MKL", "plain")

Answer = Callable[[], tuple[float, list[list[int]]]]
"""Seconds to the first token, and tokens."""


def of_random_models(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for size in args.sizes:
        backbone = Backbone(random_model(size, SIZES[size]))
        for length in LENGTHS:
            ids = torch.arange(length)[None] % 8000 + 5
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            rows.append({"prompt": f"{size}, {length:,} tokens", **timed(backbone, inputs, args)})
    return rows


def of_clips(args: argparse.Namespace) -> list[dict[str, Any]]:
    engine = draftlens.load("embedded", device="cpu", draft=None)
    rows = []
    for frames in FRAMES:
        inputs = sample_inputs(engine, caption_sample(0), frames).target
        figures = timed(engine.target.backbone, inputs, args)
        rows.append({"prompt": f"embedded target, {frames} frames", **figures})
    return rows


def timed(
    backbone: Backbone, inputs: Mapping[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """Seconds by way, interleaved, and whether all tokens are equal."""
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}

    def stock() -> tuple[float, list[list[int]]]:
        run = run_stock(backbone, inputs, **options)
        return run.ttft, run.tokens

    def plain() -> tuple[float, list[list[int]]]:
        result = draftlens.generate(backbone, inputs, method="plain", **options)
        return result.stats.ttft, result.tokens

    def by_mkl() -> tuple[float, list[list[int]]]:
        with mock.patch.object(onednn_many_rows, "PASS_WORK", NEVER):
            return plain()

    answers: dict[str, Answer] = dict(zip(WAYS, (stock, by_mkl, plain), strict=True))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens = []
    for repeat in range(1 + args.repeats):
        for way, answer in rotated(list(answers.items()), repeat):
            taken, given = answer()
            tokens.append(given)
            if repeat:
                seconds[way].append(taken)
    return {"seconds": seconds, "equal": all(each == tokens[0] for each in tokens)}


def measure(args: argparse.Namespace) -> Report:
    """Rows of the prompts that are timed, beside the others of an earlier run."""
    commit = environment(args)["commit"][:7]
    found = {row["prompt"]: row for row in report_of(args).get("rows", [])}
    for row in (*of_random_models(args), *of_clips(args)):
        found[row["prompt"]] = {**row, "commit": commit}
    return {"rows": list(found.values())}


def page(report: Report) -> list[str]:
    """Seconds and ratios by prompt."""
    columns: dict[str, Any] = {"prompt": "{prompt}"}
    for way in WAYS:
        columns[f"{way}, s"] = partial(median_seconds_of, way)
    for way in WAYS[1:]:
        columns[way] = partial(gain_of, way)
    columns |= {"tokens equal": "{equal}", "commit": "{commit}"}
    return [
        table(report["rows"], columns),
        "Ratios are stock's time over the way's, in the same repeat.",
    ]


def median_seconds_of(way: str, row: Mapping[str, Any]) -> str:
    return f"{statistics.median(row['seconds'][way]):.3f}"


def gain_of(way: str, row: Mapping[str, Any]) -> str:
    return range_line(ratios(row["seconds"][WAYS[0]], row["seconds"][way]))


BENCHMARK = Benchmark(
    "prompts",
    __doc__,
    "Seconds to the first token",
    measure,
    page,
    {
        "--repeats": 5,
        "--sizes": {"nargs": "*", "choices": list(SIZES), "default": list(SIZES)},
        "--max-new-tokens": 4,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
