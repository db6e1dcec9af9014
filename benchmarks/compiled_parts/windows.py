"""Passes of a model with sliding windows by its modules and by OpenVINO.

    python benchmarks/compiled.py windows

Layers of Gemma 3 270M, five of six with a window of 512 tokens, and random weights. A pass over a
few tokens after contexts of several lengths, and the reading of the context.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from shared import WARM_UPS, Benchmark, PrefilledPrompt, Report, environment, rotated, table
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from draftlens.models.adapter import Backbone
from draftlens.passes import attach

ENGINES = ("modules", "openvino")
CONTEXTS = (300, 2000, 6000)
WIDTHS = (1, 6, 26)
WINDOW = 512


def model_of(layers: int) -> Any:
    """A text model with a vocabulary of 32,000 tokens."""
    torch.manual_seed(0)
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = Gemma3TextConfig(
        vocab_size=32000,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=WINDOW,
        layer_types=[kinds[layer % 6] for layer in range(layers)],
    )
    return Gemma3ForCausalLM(config).eval()


def measure(args: argparse.Namespace) -> Report:
    """CPU seconds of this process by context, width and engine."""
    model = model_of(args.layers)
    backbones = {engine: Backbone(model) for engine in ENGINES}
    for engine, backbone in backbones.items():
        attach([backbone], engine)
    assert backbones["openvino"].passes.label
    rows = []
    for context in CONTEXTS:
        reading = {}
        prompts = {}
        for engine, backbone in backbones.items():
            prompt = backbone.text_prompt(torch.arange(context)[None] % 30000 + 5)
            began = time.process_time()
            prompts[engine] = PrefilledPrompt.of(backbone, prompt)
            reading[engine] = time.process_time() - began
        rows.append({"context": context, "read": "the context", **reading})
        for width in WIDTHS:
            seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
            cases = {engine: prompts[engine].chain_case(width) for engine in ENGINES}
            for number in range(WARM_UPS + args.repeats):
                for engine, forward in rotated(list(cases.items()), number):
                    began = time.process_time()
                    forward()
                    if number >= WARM_UPS:
                        seconds[engine].append(time.process_time() - began)
            medians = {engine: statistics.median(values) for engine, values in seconds.items()}
            read = f"{width} token{'s' if width > 1 else ''}"
            rows.append({"context": context, "read": read, **medians})
            print(rows[-1], flush=True)
    return {"environment": {**environment(args), "layers": args.layers}, "rows": rows}


def page(report: Report) -> list[str]:
    """Milliseconds and speeds."""
    columns: dict[str, Any] = {
        "cached tokens": "{context}",
        "read": "{read}",
        "modules, ms": "{modules:.1ms}",
        "OpenVINO, ms": "{openvino:.1ms}",
        "modules over OpenVINO": lambda row: f"{row['modules'] / row['openvino']:.2f}",
    }
    return [
        table(report["rows"], columns),
        f"Layers of Gemma 3 270M ({report['environment']['layers']} of them, five of six with a "
        f"window of {WINDOW} tokens), random weights, float32; CPU time of the process, medians; "
        "the context is read once.",
    ]


BENCHMARK = Benchmark(
    "compiled_windows",
    __doc__,
    "Passes of a model with sliding windows",
    measure,
    page,
    {"--repeats": 9, "--layers": 12},
)
