"""Prompts by engine of passes: seconds by length, and the acceptance of an 8-bit draft.

    python benchmarks/compiled.py reading

A model of real shape with random weights reads prompts by its modules (whose products are those of
the faster library) and by OpenVINO's passes, with 8-bit weights of a draft and of a target, whose
attention adds in one order, and without, interleaved. Then the embedded pair captions clips with a
chain of 5 and a draft in float32, with 8-bit weights after its prompt, and with 8-bit weights in
all passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any
from unittest import mock

import torch
from random_models import random_model
from shared import (
    Benchmark,
    Report,
    caption_sample,
    environment,
    grid,
    rotated,
    sample_inputs,
)

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.passes.openvino import OpenVinoPasses

LENGTHS = (100, 300, 600, 1200, 2400)
MODULES = "modules"


def seconds_by_length(args: argparse.Namespace) -> list[dict[str, Any]]:
    backbone = Backbone(random_model(args.size, args.layers))
    engines: dict[str, Passes] = {
        MODULES: EAGER,
        "OpenVINO": OpenVinoPasses(backbone),
        "OpenVINO, 8-bit weights": OpenVinoPasses(backbone, "int8"),
        "OpenVINO, 8-bit target": OpenVinoPasses(backbone, "int8", is_target=True),
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


def measure(args: argparse.Namespace) -> Report:
    """Seconds of prompts and acceptance lengths."""
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    rows = seconds_by_length(args)
    return {"environment": facts, "rows": rows, "acceptance": acceptance_lengths(args.clips)}


def page(report: Report) -> list[str]:
    """Prompts by length and engine."""
    rows = {str(row["length"]): row["seconds"] for row in report["rows"]}

    def cell(length: str, name: str) -> str:
        seconds = rows[length]
        return f"{1e3 * seconds[name]:.0f} ms ({seconds[MODULES] / seconds[name]:.2f})"

    lengths = ", ".join(f"{name} {value:.2f}" for name, value in report["acceptance"].items())
    return [
        grid("tokens", rows, next(iter(rows.values())), cell),
        "In brackets the speed over modules. Tokens a pass of the embedded pair, by weights of the "
        f"draft: {lengths}.",
    ]


BENCHMARK = Benchmark(
    "compiled_reading",
    __doc__,
    "Prompts by engine of passes",
    measure,
    page,
    {"--repeats": 5, "--size": "0.5B", "--layers": 6, "--clips": 12},
)
