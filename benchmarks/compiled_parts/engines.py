"""What a pass costs by its number of tokens: by the model's modules, by them with MKL alone, by
OpenVINO, and by OpenVINO with 8-bit weights (a draft's).

The models have the layers of real ones and random weights; a pass reads all of them once, whatever
its width, so the cost of one token is the bound for a few.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import by_mkl, random_model
from shared import (
    WARM_UPS,
    Case,
    PrefilledPrompt,
    argument_parser,
    configure,
    environment,
    environment_line,
    rotated,
    save,
)

from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.passes import attach
from draftlens.passes.openvino import OpenVinoPasses

PREDICTION = """Written before the first run: by OpenVINO three tokens cost at most 1.2 and six at
most 1.4 times one token, as other measurements of the same engine showed (1.15 and 1.33); by the
modules 2.9 and 2.2 times. With 8-bit weights, after a trial with six layers: 0.4 to 0.5 of
float32's time up to three tokens, 0.75 at six, 0.95 at 16."""

OUTCOME = """On an EPYC with AVX2 only, 8-bit weights took 0.45 to 0.62 of float32's time up to
three tokens, and more than float32 from six on, where less was expected. With AVX-512 they take
0.38 to 0.47 at every width."""

NAMES = ("modules", "mkl", "openvino", "int8")
WIDTHS = (1, 2, 3, 4, 6, 9, 16, 26)
CONTEXT = 300


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/compiled_engines", repeats=9)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--size", default="0.5B")
    args = parser.parse_args()
    configure(args.threads)
    backbone = Backbone(random_model(args.size, args.layers))
    engines: dict[str, Passes] = {"modules": EAGER, "mkl": EAGER}
    starts = {}
    for name, quantization in (("openvino", None), ("int8", "int8")):
        # The first model of `attach` is the target, the second one the draft.
        attach([backbone, backbone] if quantization else [backbone], "openvino", quantization)
        engines[name] = backbone.passes
        assert isinstance(backbone.passes, OpenVinoPasses)
        starts[name] = {"seconds": backbone.passes.seconds, "stored": backbone.passes.is_stored}
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    prefilled = PrefilledPrompt.of(backbone, prompt)
    rows = []
    for width in WIDTHS:
        forward = prefilled.chain_case(width)
        rows.append({"width": width, **median_cpu_seconds(backbone, engines, forward, args)})
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    report = {"environment": facts, "prediction": PREDICTION, "starts": starts, "rows": rows}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


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


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    first = report["rows"][0]
    rows = []
    for row in report["rows"]:
        times = [f"{1e3 * row[name]:.1f}" for name in NAMES]
        ratios = [f"{row[name] / first[name]:.2f}" for name in NAMES]
        faster = [f"{row['modules'] / row['openvino']:.2f}", f"{row['int8'] / row['openvino']:.2f}"]
        rows.append([str(row["width"]), *times, *ratios, *faster])
    columns = (
        "tokens",
        "modules, ms",
        "MKL alone, ms",
        "OpenVINO, ms",
        "OpenVINO int8, ms",
        "modules, cost over one token",
        "MKL alone, cost over one token",
        "OpenVINO, cost over one token",
        "OpenVINO int8, cost over one token",
        "OpenVINO: times as fast as modules",
        "OpenVINO: int8 over float32",
    )
    facts = report["environment"]
    paragraphs = [
        "# Passes by OpenVINO",
        "\n".join(markdown_table(columns, rows)),
        f"Layers of Qwen2.5 {facts['size']} ({facts['layers']} of them), random weights, float32, "
        f"after {CONTEXT} cached tokens; CPU time of the process, medians.",
        "Ready after "
        + ", ".join(
            f"{start['seconds']:.1f} s ({name}, {'graph on disk' if start['stored'] else 'traced'})"
            for name, start in report["starts"].items()
        )
        + " on the clock.",
        f"Environment: {environment_line(facts)}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
        f"Outcome. {' '.join(OUTCOME.split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"
