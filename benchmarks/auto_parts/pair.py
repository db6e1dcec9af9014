"""The embedded pair: the automatic tree from its first answer, beside a chain of 5 and stock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shared import (
    Answerer,
    Run,
    assisted_answerer,
    backbones,
    caption_sample,
    engine_answerer,
    rotated,
    sample_inputs,
    stock_answerer,
)

import draftlens
from draftlens.drafting.adaptive import history as records

CLIPS = range(70, 74)
"""Seeds of held-out clips."""

FRAMES = (8, 64)


def measure_pair(repeats: int, most: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Runs of every way of answering by clip, interleaved.

    Before each answer of `auto, first answer` the acceptance of earlier answers is forgotten.

    Args:
        repeats: of every clip.
        most: new tokens of an answer.
        report: receives a line after each repeat.
    """
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    began = time.perf_counter()
    engine.calibrate()
    calibration_seconds = time.perf_counter() - began
    target, draft = backbones(engine)
    fresh = draftlens.load("embedded", device="cpu")
    answer_as_first = engine_answerer(fresh, {"tree": "auto"})

    def first_answer(inputs: Any, options: dict[str, Any]) -> Run:
        records.forget_answers(fresh.target.backbone)
        return answer_as_first(inputs, options)

    answerers: dict[str, Answerer] = {
        "stock generate": stock_answerer(target),
        "stock assisted": assisted_answerer(target, draft, {}),
        "plain": engine_answerer(engine, {"method": "plain"}),
        "chain 5": engine_answerer(engine, {"num_speculative_tokens": 5}),
        "chain 3": engine_answerer(engine, {"num_speculative_tokens": 3}),
        "eagle": engine_answerer(engine, {"tree": "eagle"}),
        "auto, first answer": first_answer,
        "auto": engine_answerer(engine, {"tree": "auto"}),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in answerers}
    for repeat in range(repeats):
        for frames in FRAMES:
            for clip in CLIPS:
                inputs = sample_inputs(engine, caption_sample(clip), frames)
                _answer_all(answerers, inputs, repeat, {"clip": clip, "frames": frames}, runs, most)
        report(f"repeat {repeat + 1} of {repeats}")
    return {"calibration_seconds": calibration_seconds, "runs": runs}


def _answer_all(
    answerers: dict[str, Answerer],
    inputs: Any,
    repeat: int,
    labels: dict[str, int],
    runs: dict[str, list[dict[str, Any]]],
    most: int,
) -> None:
    tokens: Any = None
    for name, answer in rotated(list(answerers.items()), repeat):
        run = answer(inputs, {"max_new_tokens": most})
        tokens = tokens or run["tokens"]
        assert run["tokens"] == tokens, f"{name} changed the tokens"
        figures = {key: run[key] for key in ("e2e", "decode")}
        tau = run.get("mean_acceptance_length", 1.0)
        runs[name].append({**labels, "repeat": repeat, **figures, "tau": tau})
