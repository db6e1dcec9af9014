"""Prompts by engine of passes: seconds by length, and the acceptance of an 8-bit draft.

    python benchmarks/compiled.py reading

A model of real shape with random weights reads prompts by its modules (whose products are those of
the faster library) and by OpenVINO's passes, with and without 8-bit weights, interleaved. Then the
embedded pair captions clips with a chain of 5 and a draft in float32, with 8-bit weights after its
prompt, and with 8-bit weights in all passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
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
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.passes.openvino import OpenVinoPasses

LENGTHS = (100, 300, 600, 1200, 2400)
MODULES = "modules"

PREDICTION = """Written after trials with 6 layers of 0.5B: OpenVINO's passes are 1.1 to 1.25 times
as fast as the modules at every length, with 8-bit weights 2.0 to 2.5 times. The acceptance length
of the embedded pair stays within 1%."""


def seconds_by_length(args: argparse.Namespace) -> list[dict[str, Any]]:
    backbone = Backbone(random_model(args.size, args.layers))
    engines: dict[str, Passes] = {
        MODULES: EAGER,
        "OpenVINO": OpenVinoPasses(backbone),
        "OpenVINO, 8-bit weights": OpenVinoPasses(backbone, "int8"),
    }
    rows = []
    for length in LENGTHS:
        prompt = backbone.text_prompt(torch.arange(length)[None] % 8000 + 5)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for repeat in range(args.repeats + 1):
            for name, passes in rotated(list(engines.items()), repeat):
                backbone.passes = passes
                cache = backbone.new_cache(prompt, room=8)
                began = time.perf_counter()
                backbone.prefill(prompt, cache)
                if repeat:  # the first reading of a length prepares it
                    seconds[name].append(time.perf_counter() - began)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        rows.append({"length": length, "seconds": medians})
        print(rows[-1], flush=True)
    return rows


def acceptance_lengths(clips: int) -> dict[str, float]:
    read = OpenVinoPasses.read

    def by_modules(self: OpenVinoPasses, *arguments: Any) -> Any:
        return None if self.quantization else read(self, *arguments)

    found = {"float32": acceptance_length(None, clips)}
    with mock.patch.object(OpenVinoPasses, "read", by_modules):
        found["8-bit weights after the prompt"] = acceptance_length("int8", clips)
    found["8-bit weights"] = acceptance_length("int8", clips)
    return found


def acceptance_length(quantization: str | None, clips: int) -> float:
    """Tokens a pass over all captions."""
    engine = draftlens.load(
        "embedded", device="cpu", compile="openvino", draft_quantization=quantization
    )
    emitted = passes = 0
    for seed in range(clips):
        inputs = sample_inputs(engine, caption_sample(100 + seed), 16)
        method = {"num_speculative_tokens": 5}
        result = engine.answer(inputs, method=method, max_new_tokens=256, do_sample=False).run()
        emitted += result.stats.emitted - result.stats.first
        passes += result.stats.passes
    return emitted / passes


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/compiled_reading", repeats=5)
    parser.add_argument("--size", default="0.5B")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--clips", type=int, default=12)
    args = parser.parse_args()
    configure(args.threads)
    report: dict[str, Any] = {
        "environment": {**environment(args), "size": args.size, "layers": args.layers},
        "prediction": " ".join(PREDICTION.split()),
        "rows": seconds_by_length(args),
        "acceptance": acceptance_lengths(args.clips),
    }
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    names = list(report["rows"][0]["seconds"])
    cells = []
    for row in report["rows"]:
        seconds = row["seconds"]
        cell = [str(row["length"])]
        for name in names:
            speed = seconds[MODULES] / seconds[name]
            cell.append(f"{1000 * seconds[name]:.0f} ms ({speed:.2f})")
        cells.append(cell)
    lengths = ", ".join(f"{name} {value:.2f}" for name, value in report["acceptance"].items())
    lines = ["# Prompts by engine of passes", "", *markdown_table(["tokens", *names], cells), ""]
    lines += ["In brackets the speed over modules.", ""]
    lines += [f"Tokens a pass of the embedded pair, by weights of the draft: {lengths}.", ""]
    lines += [f"Prediction. {report['prediction']}", "", environment_line(report["environment"])]
    return "\n".join(lines) + "\n"
