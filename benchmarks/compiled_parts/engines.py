"""What a pass costs by its number of tokens: by the model's modules and by OpenVINO.

The models have the layers of real ones and random weights; a pass reads all of them once, whatever
its width, so the cost of one token is the bound for a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import random_model
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
from draftlens.compile import attach
from draftlens.models.adapter import Backbone

PREDICTION = """Written before the first run: by OpenVINO three tokens cost at most 1.2 and six at
most 1.4 times one token, as other measurements of the same engine showed (1.15 and 1.33); by the
modules 2.9 and 2.2 times."""

WIDTHS = (1, 2, 3, 4, 6, 9, 16, 26)
CONTEXT = 300


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/compiled_engines", repeats=9)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--size", default="0.5B")
    args = parser.parse_args()
    configure(args.threads)
    backbone = Backbone(random_model(args.size, args.layers))
    attach([backbone], "openvino")
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    prefilled = PrefilledPrompt.of(backbone, prompt)
    rows = []
    for width in WIDTHS:
        engine = prefilled.chain_case(width)

        def modules(case: Case = engine) -> None:
            with by_modules([backbone]):
                case()

        cases: dict[str, Case] = {"modules": modules, "openvino": engine}
        rows.append({"width": width, **median_seconds(cases, args.repeats)})
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    report = {"environment": facts, "prediction": PREDICTION, "rows": rows}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    first = report["rows"][0]
    rows = []
    for row in report["rows"]:
        times = [f"{1e3 * row[name]:.1f}" for name in ("modules", "openvino")]
        ratios = [f"{row[name] / first[name]:.2f}" for name in ("modules", "openvino")]
        faster = f"{row['modules'] / row['openvino']:.2f}"
        rows.append([str(row["width"]), *times, *ratios, faster])
    columns = (
        "tokens",
        "modules, ms",
        "OpenVINO, ms",
        "modules, cost over one token",
        "OpenVINO, cost over one token",
        "times as fast as modules",
    )
    facts = report["environment"]
    paragraphs = [
        "# Passes by OpenVINO",
        "\n".join(markdown_table(columns, rows)),
        f"Layers of Qwen2.5 {facts['size']} ({facts['layers']} of them), random weights, float32, "
        f"after {CONTEXT} cached tokens.",
        f"Environment: {environment_line(facts)}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"
