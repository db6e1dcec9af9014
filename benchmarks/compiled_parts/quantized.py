"""Targets with 8- and 4-bit weights by OpenVINO: passes, plain decoding, and the distance of the
rounded model from the float32 one.

The models of `rows` have the layers of a real one and random weights. The distances are those of
the embedded target, at every token of its own answers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from random_models import random_model
from shared import WARM_UPS, Benchmark, Report, environment, rotated, table

import draftlens
from compiled_parts.engines import CONTEXT, ratio_cell, seconds_by_width
from draftlens.core.tree import ancestors, attention_mask, chain
from draftlens.media import Limits
from draftlens.media.conversation import ask, read
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.passes import attach
from draftlens.request import Request
from draftlens.streaming import Stream

NAMES = {
    "modules": "modules",
    "openvino": "OpenVINO float32",
    "int8": "int8",
    "int8-weights": "int8-weights",
    "int4": "int4",
    "int4-weights": "int4-weights",
}
WIDTHS = (1, 2, 4, 6, 9, 26)
TOKENS = 17
"""Of the longer of two answers, whose difference is the time of plain decoding."""

DISTANCE = {
    "": "{name}",
    "tokens": "{tokens}",
    "relative error of logits": "{error:.1e}",
    "same likeliest token": "{same:.3f}",
    "divergence (nats)": "{divergence:.1e}",
}
"""Columns of `distances`."""

Case = tuple[Prompt, torch.Tensor]
"""A prompt and the tokens ``[1, T]`` of its answer."""

CLIPS = ("shapes.mp4", "drift.mp4")
QUESTIONS = (
    "Describe the video.",
    "What happens in this clip?",
    "Which shapes are there?",
    "How do the shapes move?",
)


def engines_of(backbone: Backbone) -> dict[str, Passes]:
    """Passes of a model by name."""
    engines: dict[str, Passes] = {"modules": EAGER}
    for name in list(NAMES)[1:]:
        quantization = name if name.startswith("int") else None
        attach([backbone], "openvino", quantization=quantization)
        engines[name] = backbone.passes
    return engines


def plain_speed(
    backbone: Backbone, engines: Mapping[str, Passes], args: argparse.Namespace
) -> dict[str, float]:
    """Tokens per second of CPU time of plain decoding, medians."""
    ids = torch.arange(CONTEXT)[None] + 5
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(WARM_UPS + args.repeats):
        for name, passes in rotated(list(engines.items()), number):
            backbone.passes = passes
            spent = []
            for tokens in (1, TOKENS):
                request = Request(given, method="plain", options={"max_new_tokens": tokens})
                start = time.process_time()
                Stream(backbone, None, request).run()
                spent.append(time.process_time() - start)
            if number >= WARM_UPS:
                seconds[name].append((spent[1] - spent[0]) / (TOKENS - 1))
    return {name: 1 / statistics.median(values) for name, values in seconds.items()}


def embedded_cases() -> tuple[Backbone, list[Case]]:
    """The embedded target, and prompts with clips and their answers."""
    engine = draftlens.load(draft=None, device="cpu", calibrate=False)
    backbone = engine.target.backbone
    cases = []
    for number, name in enumerate(CLIPS):
        for text in QUESTIONS[number::2]:
            chat = read(ask(text, video=str(clips() / name)), 8, Limits())
            tokens = engine.answer(engine.process([chat]), method="plain", max_new_tokens=48)
            prepared = backbone.prepare(engine.process([chat]).target, max_new_tokens=1)
            cases.append((backbone.encode(prepared), torch.tensor(tokens.run().tokens)))
    return backbone, cases


@torch.inference_mode()
def distances(backbone: Backbone, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """How far rounded logits of a model are from those of its modules."""
    logits: dict[str, torch.Tensor] = {}
    for name, passes in engines_of(backbone).items():
        backbone.passes = passes
        parts = [answer_logits(backbone, prompt, tokens) for prompt, tokens in cases]
        logits[name] = torch.cat(parts)
    exact = logits["modules"]
    return [distance(name, exact, logits[name]) for name in list(NAMES)[1:]]


def distance(name: str, exact: torch.Tensor, logits: torch.Tensor) -> dict[str, Any]:
    """How far logits ``[T, V]`` are from exact ones."""
    chances = exact.log_softmax(-1)
    divergence = (chances.exp() * (chances - logits.log_softmax(-1))).sum(-1).mean()
    return {
        "name": name,
        "tokens": len(exact),
        "error": float((logits - exact).norm() / exact.norm()),
        "same": float((logits.argmax(-1) == exact.argmax(-1)).float().mean()),
        "divergence": float(divergence),
    }


def answer_logits(backbone: Backbone, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
    """Logits at all tokens of an answer, ``[T, V]``."""
    cache = backbone.new_cache(prompt, room=64)
    first = backbone.prefill(prompt, cache)[0].clone()
    steps = torch.arange(tokens.shape[1])[None]
    rest = backbone.forward(tokens, prompt.positions(steps), cache, chain_mask(cache, tokens))
    return torch.cat([first, rest[0, :-1]])


def chain_mask(cache: KVCache, tokens: torch.Tensor) -> torch.Tensor | None:
    """The mask of consecutive tokens."""
    return attention_mask(cache.lengths, ancestors(chain(tokens.shape[1] - 1)))


def clips() -> Path:
    """The folder of the clips in the package."""
    return Path(str(files("draftlens") / "embedded" / "clips"))


def measure(args: argparse.Namespace) -> Report:
    """Seconds of passes by width, plain decoding, and distances."""
    backbone = Backbone(random_model(args.size, args.layers))
    engines = engines_of(backbone)
    speeds = plain_speed(backbone, engines, args)
    backbone.passes = EAGER
    rows = seconds_by_width(backbone, engines, WIDTHS, args)
    facts = {**environment(args), "size": args.size, "layers": args.layers}
    return {
        "environment": facts,
        "rows": rows,
        "plain": speeds,
        "distances": distances(*embedded_cases()),
    }


def page(report: Report) -> list[str]:
    """Milliseconds, costs over one token, plain decoding, distances."""
    first, facts = report["rows"][0], report["environment"]
    columns: dict[str, Any] = {"tokens": "{width}"}
    for name, title in NAMES.items():
        columns[f"{title}, ms"] = f"{{{name}:.1ms}}"
    for name, title in NAMES.items():
        columns[f"{title}, cost over one token"] = partial(ratio_cell, name, first[name])
    plain = report["plain"]
    speeds = [
        {"name": NAMES[name], "speed": speed, "over": speed / plain["modules"]}
        for name, speed in plain.items()
    ]
    return [
        table(report["rows"], columns),
        f"Layers of Qwen2.5 {facts['size']} ({facts['layers']} of them), random weights, after "
        f"{CONTEXT} cached tokens; CPU time of the process, medians.",
        "Plain decoding:",
        table(
            speeds, {"": "{name}", "tokens per second": "{speed:.1f}", "over modules": "{over:.2f}"}
        ),
        "The embedded target at every token of prompts and its own answers, beside its modules:",
        table(report["distances"], DISTANCE),
    ]


BENCHMARK = Benchmark(
    "compiled_quantized",
    __doc__,
    "Targets with 8- and 4-bit weights",
    measure,
    page,
    {"--repeats": 9, "--layers": 24, "--size": "0.5B"},
)
