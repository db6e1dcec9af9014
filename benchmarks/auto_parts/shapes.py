"""Models of real shapes with random weights, whose draft is right as often as a recorded one.

Every forward is a real one of layers of Qwen2.5 1.5B and 0.5B in LLaVA-OneVision's architecture, so
times are real. What the draft prefers is replaced (`replayed_draft.py`). Passes run by the modules,
by OpenVINO, with 8-bit weights of the draft, and with 8- and 4-bit weights of the target, in turn.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from random_models import random_model
from replayed_draft import ReplayedDraft
from simulation import Token, recorded_text
from torch import Tensor

from auto_parts.cells import recorded_depths
from draftlens.drafting.adaptive import history as records
from draftlens.drafting.adaptive.history import calibrate_models
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.request import Request
from draftlens.streaming import Stream
from draftlens.verify import run_stock

PROMPTS = ("chat1", "code2", "image2")
PROMPT_TOKENS = 150
NEW_TOKENS = 64
OPTIONS: Mapping[str, Any] = {"max_new_tokens": NEW_TOKENS, "no_repeat_ngram_size": 1}
"""Random weights repeat one token for ever, which copying would draft for nothing: here no token
occurs twice, so an answer has nothing to copy from itself."""

TEXTS = 3
"""Texts that every method drafts; the first tokens of one text decide what its answer learns."""

SHORT = 14
"""Tokens of an answer that is too short to learn in."""

CALIBRATION_SECONDS = 6.0
"""Time for the calibration, as after a minute of loading. In two seconds, the least, one core
measures a single width of these models."""

TARGET, DRAFT = ("1.5B", 14), ("0.5B", 12)
"""Sizes and numbers of layers: half of the layers, so that all copies of the weights fit into
memory."""

VOCABULARY = 75968
"""Half of the tokens, so that the output heads keep their share of a pass."""

STOCK = "stock"

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "modules": {"compile": False},
    "OpenVINO": {"compile": "openvino"},
    "OpenVINO, 8-bit draft": {"compile": "openvino", "draft_quantization": "int8"},
    **{
        f"OpenVINO, {kind} target, 8-bit draft": {
            "compile": "openvino",
            "draft_quantization": "int8",
            "quantization": kind,
        }
        for kind in ("int8", "int4")
    },
}
"""The last two have another target, whose answers are compared with its own plain decoding."""


@dataclass(frozen=True)
class ShapeReport:
    """What was measured with models of real shapes.

    Args:
        calibration_seconds: time of the calibrations of both models.
        curves: of target and draft by engine of passes, as JSON values.
        runs: seconds and mean acceptance length by prompt, engine of passes and method.
    """

    calibration_seconds: float
    curves: dict[str, list[dict[str, Any]]]
    runs: dict[str, dict[str, dict[str, dict[str, float]]]]


def measure_shapes(
    report: Callable[[str], None], names: Sequence[str] = tuple(ENGINES)
) -> ShapeReport:
    """Measure stock `generate`, plain decoding, chains and the automatic tree, cold and warm.

    Args:
        report: receives a line after each run.
        names: keys of `ENGINES`.
    """
    target = Backbone(random_model(*TARGET, VOCABULARY))
    draft = ReplayedDraft(random_model(*DRAFT, VOCABULARY))
    inputs = {"input_ids": torch.arange(PROMPT_TOKENS)[None] % 1000 + 5}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    began = time.perf_counter()
    curves = _measure_curves([target, draft], report, names)
    calibration_seconds = time.perf_counter() - began
    runs: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for number, prompt in enumerate(PROMPTS):
        stock = run_stock(target, inputs, **OPTIONS)
        runs[prompt] = {STOCK: {STOCK: {"e2e": stock.e2e, "decode": stock.decode, "tau": 1.0}}}
        texts = [
            recorded_text(NEW_TOKENS, recorded_depths("float32", prompt), 100 * seed + number)
            for seed in range(TEXTS)
        ]
        for name in names:
            attach([target, draft], **ENGINES[name])
            answer = stock.tokens[0]
            if target.passes.rounding:
                answer = _plain(target, inputs)
            runs[prompt][name] = _measure_prompt(target, draft, inputs, texts, answer)
            report(f"{prompt}, {name}: {runs[prompt][name]}")
    return ShapeReport(calibration_seconds, curves, runs)


def _measure_curves(
    models: list[Backbone], report: Callable[[str], None], names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The cost curves of both models by engine of passes."""
    curves = {}
    for name in names:
        attach(models, **ENGINES[name])
        found = calibrate_models(models, CALIBRATION_SECONDS)
        curves[name] = [curve.to_dict() for curve in found]
        report(f"{name}: {curves[name]}")
    return curves


def _plain(target: Backbone, inputs: Mapping[str, Tensor]) -> list[int]:
    result = Stream(target, None, Request(inputs, method="plain", options=OPTIONS)).run()
    return result.tokens[0]


def _measure_prompt(
    target: Backbone,
    draft: ReplayedDraft,
    inputs: Mapping[str, Tensor],
    texts: Sequence[Sequence[Token]],
    answer: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Every method on the same texts, the means of a name; what is warm has answered before."""
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)

    def run(
        name: str,
        text: Sequence[Token],
        method: Mapping[str, Any],
        tokens: int = NEW_TOKENS,
        **extras: Any,
    ) -> None:
        draft.play(text, answer, PROMPT_TOKENS)
        options = {**OPTIONS, "max_new_tokens": tokens}
        request = Request(inputs, method=method, options=options, extras=extras)
        result = Stream(target, draft, request).run()
        assert result.tokens == [list(answer[:tokens])], f"{name} changed the tokens"
        stats = result.stats
        figures[name].append(
            {
                "decode": stats.decode,
                "e2e": stats.e2e,
                "tau": stats.mean_acceptance_length,
                "drafted": stats.drafted,
            }
        )

    default = {"method": "auto"}
    run("lookup", texts[0], {"method": "lookup"})
    for text in texts:  # in turn, since the machine is not always equally fast
        run("plain", text, {"method": "plain"})
        run("chain 5", text, {"num_speculative_tokens": 5})
        run("chain 2", text, {"num_speculative_tokens": 2})
        run(f"plain, {SHORT} tokens", text, {"method": "plain"}, SHORT)
        records.forget_answers(target)
        run(f"default, first answer of {SHORT} tokens", text, default, SHORT)
        records.forget_answers(target)
        run("default, first answer", text, default)
    run("default, later answer", texts[0], default)
    records.forget_answers(target)
    run("default, first answer, given as a reference", texts[0], default, references=[[*answer]])
    gc.collect()
    return {
        name: {key: mean(run[key] for run in runs) for key in runs[0]}
        for name, runs in figures.items()
    }
