"""Milliseconds of single forwards of the embedded pair, by the modules and by compiled code."""

from __future__ import annotations

import argparse
from typing import Any

from shared import (
    Benchmark,
    Case,
    PrefilledPrompt,
    Report,
    backbones,
    caption_sample,
    encoded_prompt,
    median_seconds,
    sample_inputs,
    table,
)

import draftlens
from compiled_parts import by_modules
from draftlens.models.adapter import Backbone

FRAMES = (8, 64, 256)
WIDTHS = {"target": (1, 6, 26), "draft": (1, 2, 6)}
PHASES = {
    ("target", 1): "plain decoding",
    ("target", 6): "check of a chain of 5",
    ("target", 26): "check of EAGLE's tree",
    ("draft", 1): "a draft step",
    ("draft", 2): "catching up",
    ("draft", 6): "catching up after a whole chain",
}


def measure(args: argparse.Namespace) -> Report:
    """Seconds of passes by model, width and context."""
    engine = draftlens.load("embedded", device="cpu", calibrate=False, compile=True)
    rows = []
    for frames in FRAMES:
        inputs = sample_inputs(engine, caption_sample(0), frames)
        for role, backbone in zip(("target", "draft"), backbones(engine), strict=True):
            prefilled = PrefilledPrompt.of(backbone, encoded_prompt(backbone, inputs.target))
            for width in WIDTHS[role]:
                compiled = prefilled.chain_case(width)

                def eager(case: Case = compiled, backbone: Backbone = backbone) -> None:
                    with by_modules([backbone]):
                        case()

                cases: dict[str, Case] = {"eager": eager, "compiled": compiled}
                row: dict[str, Any] = {"role": role, "width": width, "frames": frames}
                row |= median_seconds(cases, args.repeats)
                rows.append({**row, "context": prefilled.cache.lengths[0]})
    return {"rows": rows}


def page(report: Report) -> list[str]:
    """Milliseconds by pass."""
    columns: dict[str, Any] = {
        "phase": lambda row: PHASES[row["role"], row["width"]],
        "pass": "{role}({width})",
        "context": "{context}",
        "modules, ms": "{eager:.2ms}",
        "compiled, ms": "{compiled:.2ms}",
        "share": lambda row: f"{row['compiled'] / row['eager']:.2f}",
    }
    return [table(report["rows"], columns)]


BENCHMARK = Benchmark("compiled_passes", __doc__, "Single passes", measure, page, {"--repeats": 40})
