"""Models of real shapes with random weights, whose draft is right as often as a recorded one.

Every forward is a real one of the size of Qwen2.5 1.5B and 0.5B in LLaVA-OneVision's architecture,
so times are real. What the draft prefers is replaced (`replayed_draft.py`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from random_models import random_model
from replayed_draft import ReplayedDraft
from simulation import Token, recorded_text
from torch import Tensor

import draftlens
from auto_parts.cells import recorded_depths
from draftlens.drafting.adaptive import history as records
from draftlens.drafting.adaptive.cost_store import calibrate_models
from draftlens.models.adapter import Backbone

PROMPTS = ("chat1", "code2", "image2")
PROMPT_TOKENS = 150
NEW_TOKENS = 64
CALIBRATION_SECONDS = 6.0
"""Time for the calibration, as after a minute of loading. In two seconds, the least, one core
measures a single width of these models."""

TARGET, DRAFT = ("1.5B", 28), ("0.5B", 24)
"""Sizes and numbers of layers."""

VOCABULARY = 151936


@dataclass(frozen=True)
class ShapeReport:
    """What was measured with models of real shapes.

    Args:
        calibration_seconds: time of the calibration of both models.
        curves: of target and draft, as JSON values.
        runs: seconds of decoding and mean acceptance length by prompt and method.
    """

    calibration_seconds: float
    curves: list[dict[str, Any]]
    runs: dict[str, dict[str, dict[str, float]]]


def measure_shapes(report: Callable[[str], None]) -> ShapeReport:
    """Measure plain decoding, chains and the automatic tree, cold and warm.

    Args:
        report: receives a line after each run.
    """
    target = Backbone(random_model(*TARGET, VOCABULARY))
    draft = ReplayedDraft(random_model(*DRAFT, VOCABULARY))
    inputs = {"input_ids": torch.arange(PROMPT_TOKENS)[None] % 1000 + 5}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    began = time.perf_counter()
    curves = calibrate_models([target, draft], CALIBRATION_SECONDS)
    calibration_seconds = time.perf_counter() - began
    report(f"calibrated in {calibration_seconds:.1f} s: {[c.to_dict() for c in curves]}")
    answer = draftlens.generate(target, inputs, max_new_tokens=NEW_TOKENS).tokens[0]
    runs: dict[str, dict[str, dict[str, float]]] = {}
    for number, prompt in enumerate(PROMPTS):
        texts = [
            recorded_text(NEW_TOKENS, recorded_depths("float32", prompt), seed)
            for seed in (number, 100 + number)
        ]
        runs[prompt] = _measure_prompt(target, draft, inputs, texts, answer)
        report(f"{prompt}: {runs[prompt]}")
    return ShapeReport(calibration_seconds, [curve.to_dict() for curve in curves], runs)


def _measure_prompt(
    target: Backbone,
    draft: ReplayedDraft,
    inputs: Mapping[str, Tensor],
    texts: Sequence[Sequence[Token]],
    answer: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Every method on the same text; the warm automatic tree has answered another one before."""
    figures: dict[str, dict[str, float]] = {}

    def run(name: str, text: Sequence[Token], method: Mapping[str, Any]) -> None:
        draft.play(text, answer, PROMPT_TOKENS)
        result = draftlens.generate(
            target, inputs, draft=draft, method=method, max_new_tokens=NEW_TOKENS
        )
        assert result.tokens == [list(answer)], f"{name} changed the tokens"
        stats = result.stats
        figures[name] = {
            "decode": stats.decode,
            "e2e": stats.e2e,
            "tau": stats.mean_acceptance_length,
            "drafted": stats.drafted,
        }

    run("plain", texts[0], {"method": "plain"})
    run("chain 5", texts[0], {"num_speculative_tokens": 5})
    run("chain 2", texts[0], {"num_speculative_tokens": 2})
    records.forget_answers(target)
    run("auto, first answer", texts[0], {"tree": "auto"})
    records.forget_answers(target)
    run("auto, another text", texts[1], {"tree": "auto"})
    run("auto, second answer", texts[0], {"tree": "auto"})
    gc.collect()
    return figures
