"""Passes of a model of real width (random weights), by the modules and by compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import by_mkl, random_model
from shared import (
    Case,
    PrefilledPrompt,
    argument_parser,
    configure,
    environment,
    environment_line,
    median_seconds,
    save,
)

from compiled_parts import by_modules
from draftlens.models.adapter import Backbone
from draftlens.passes import attach

PREDICTION = """Written before the first run: at width 1,536 the weights are read from memory once a
pass, which no compiler changes: compiled passes take 0.93 to 1.0 of the modules' time at one and at
six tokens, and 0.97 to 1.0 at 26. Before oneDNN computed large products: the passes of the modules
take 1.45 times as long at 6 tokens, twice as long at 12, 1.3 times at 26, and as before at 1 and
3."""

WIDTHS = (1, 3, 6, 12, 26)
CONTEXT = 300


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/compiled_large", repeats=9)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--compile-only", action="store_true")
    args = parser.parse_args()
    configure(args.threads)
    backbone = Backbone(random_model("1.5B", args.layers))
    attach([backbone], True)
    backbone.passes.prepare()
    if args.compile_only:
        return
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    prefilled = PrefilledPrompt.of(backbone, prompt)
    rows = []
    for width in WIDTHS:
        compiled = prefilled.chain_case(width)

        def eager(case: Case = compiled) -> None:
            with by_modules([backbone]):
                case()

        def eager_by_mkl(case: Case = eager) -> None:
            with by_mkl(backbone):
                case()

        cases: dict[str, Case] = {"mkl": eager_by_mkl, "eager": eager, "compiled": compiled}
        rows.append({"width": width, **median_seconds(cases, args.repeats)})
    facts = {**environment(args), "layers": args.layers}
    report = {"environment": facts, "prediction": PREDICTION, "rows": rows}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    rows = []
    for row in report["rows"]:
        milliseconds = [f"{1e3 * row[name]:.1f}" for name in ("mkl", "eager", "compiled")]
        ratios = [f"{row[name] / row['compiled']:.2f}" for name in ("mkl", "eager")]
        rows.append([str(row["width"]), *milliseconds, *ratios])
    columns = (
        "tokens",
        "modules by MKL, ms",
        "modules, ms",
        "compiled, ms",
        "times as fast as by MKL",
        "as modules",
    )
    paragraphs = [
        "# A model of real width",
        "\n".join(markdown_table(columns, rows)),
        f"Width 1,536 and 8,960, after {CONTEXT} cached tokens, float32.",
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"
