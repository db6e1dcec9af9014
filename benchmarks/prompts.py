"""Seconds to the first token by the library that multiplies many rows (`docs/products.md`).

    python benchmarks/prompts.py
    python benchmarks/prompts.py --sizes  # the clips only; other rows of the report stay

Stock `generate`, whose products are MKL's, and plain decoding with MKL's products and with those of
the faster library, interleaved: random weights of real shapes with prompts of words, and the
embedded target with clips, whose vision tower and processor are included.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import random_model
from shared import (
    argument_parser,
    caption_sample,
    configure,
    environment,
    environment_line,
    rotated,
    sample_inputs,
    save,
)

import draftlens
from draftlens.models import products as onednn_many_rows
from draftlens.models.adapter import Backbone
from draftlens.verify import run_stock

PREDICTION = """Written after single products (oneDNN in 0.47 of MKL's time on this processor) and
a trial with 600 tokens: plain decoding with the faster library is 1.8 to 2.0 times as fast to the
first token as stock generate for 0.5B and 1.5B, least with 1,500 tokens, whose attention grows;
with the embedded target 1.15 times. With MKL's products it is as fast as stock. All tokens are
equal."""

SIZES = {"0.5B": 24, "1.5B": 28}
"""Layers by size."""

LENGTHS = (150, 600, 1500)
FRAMES = (16, 64)
NEVER = 10**30
WAYS = ("stock generate", "plain, MKL", "plain")

Answer = Callable[[], tuple[float, list[list[int]]]]
"""Seconds to the first token, and tokens."""


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/prompts", repeats=5)
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.set_defaults(max_new_tokens=4)
    args = parser.parse_args()
    configure(args.threads)
    facts = environment(args)
    file = args.out.with_suffix(".json")
    earlier = json.loads(file.read_text())["rows"] if file.exists() else []
    found = {row["prompt"]: row for row in earlier}
    for row in (*of_random_models(args), *of_clips(args)):
        found[row["prompt"]] = {**row, "commit": facts["commit"][:7]}
    rows = list(found.values())
    prediction = " ".join(PREDICTION.split())
    page = markdown(rows, environment_line(facts), prediction)
    save(args.out, {"environment": facts, "prediction": prediction, "rows": rows}, page)
    print(page)


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


def markdown(rows: Sequence[Mapping[str, Any]], facts: str, prediction: str) -> str:
    """The report as a Markdown page."""
    cells = []
    for row in rows:
        stock = row["seconds"][WAYS[0]]
        gains = []
        for way in WAYS[1:]:
            ratios = [base / own for base, own in zip(stock, row["seconds"][way], strict=True)]
            gains.append(
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        times = [f"{statistics.median(row['seconds'][way]):.3f}" for way in WAYS]
        equal = "yes" if row["equal"] else "NO"
        cells.append([row["prompt"], *times, *gains, equal, row["commit"]])
    header = ("prompt", *(f"{way}, s" for way in WAYS), *WAYS[1:], "tokens equal", "commit")
    lines = ["# Seconds to the first token", "", *markdown_table(header, cells, text_columns=(0,))]
    lines += ["", "Ratios are stock's time over the way's, in the same repeat.", ""]
    return "\n".join([*lines, f"<sub>{facts}</sub>", "", f"Prediction. {prediction}", ""])


if __name__ == "__main__":
    main()
