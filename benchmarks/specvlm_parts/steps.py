"""Accepted lengths by decoding step (table 3 of the paper), and seconds of targets that draft for
themselves (the rows Self-SD of tables 1 and 2)."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.rounds import accepted_per_pass
from shared import caption_sample, grid, median_ratio, rotated, sample_inputs, table

from draftlens import Result
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from specvlm_parts.scenes import PAPER, TREES, pruning_of, ranks, read_scene, samples_of

FIRST = 10
"""Decoding steps in the paper's table."""

WAYS: dict[str, Any] = {
    "plain": "plain",
    "self, gather": {**PAPER, "draft": "self", "tree": "eagle"},
    "self, prefill": {"method": "self-sd", "kv": "prefill", "tree": "eagle"},
    "self, gather, automatic tree": {**PAPER, "draft": "self"},
}


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Tokens of each pass of EAGLE's tree over captions at r = 0.9, by number of frames and
    clip."""
    found = {}
    for frames in args.frames:
        found[str(frames)] = [
            [
                1 + depth
                for depth in accepted_per_pass(
                    ranks(
                        engine,
                        read_scene(engine, sample, frames, args.max_new_tokens),
                        pruning_of({"prune_ratio": 0.9}),
                    ),
                    TREES["tree"],
                )
            ]
            for sample in samples_of("caption", args.clips, frames)
        ]
    return found


def report(figures: Mapping[str, list[list[int]]]) -> list[str]:
    """The means of the first steps and of all."""

    def mean(frames: str, step: object) -> str:
        clips = figures[frames]
        if step == "all steps":
            return f"{statistics.mean(length for clip in clips for length in clip):.2f}"
        lengths = [clip[int(str(step))] for clip in clips if len(clip) > int(str(step))]
        return f"{statistics.mean(lengths):.2f}" if lengths else ""

    columns: list[object] = [*range(FIRST), "all steps"]
    return ["## Accepted length by decoding step", grid("frames", figures, columns, mean)]


def measure_self(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """The processor's seconds of decoding for each token by way, clip and repeat, by number of
    frames. Other programs hardly change them, and no way has a second process."""
    found: dict[str, Any] = {}
    longest = args.long_frames or max(args.frames)
    for frames in sorted({min(frames, longest) for frames in args.frames}):
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        lengths: dict[str, list[float]] = {name: [] for name in WAYS}
        for seed in range(args.clips):
            inputs = sample_inputs(engine, caption_sample(seed), frames)
            for repeat in range(args.repeats):
                tokens = None
                for name in rotated(list(WAYS), repeat + seed):
                    result, spent = timed(engine, inputs, WAYS[name], args.max_new_tokens)
                    tokens = tokens or result.tokens
                    assert result.tokens == tokens, name
                    seconds[name].append(spent / len(result.tokens[0]))
                    lengths[name].append(result.stats.mean_acceptance_length)
        found[str(frames)] = {"seconds": seconds, "lengths": lengths}
    return found


def timed(engine: Engine, inputs: Inputs, method: Any, max_new_tokens: int) -> tuple[Result, float]:
    """An answer, and the processor's seconds after its first token."""
    stream = engine.answer(inputs, method=method, max_new_tokens=max_new_tokens, do_sample=False)
    chunks = iter(stream)
    next(chunks)
    began = time.process_time()
    for _ in chunks:
        pass
    return stream.result, time.process_time() - began


def report_self(figures: Mapping[str, Any]) -> list[str]:
    """Medians."""
    rows = [
        {
            "frames": frames,
            "way": way,
            "seconds": statistics.median(seconds),
            "gain": median_ratio(found["seconds"]["plain"], seconds),
            "length": statistics.mean(found["lengths"][way]),
        }
        for frames, found in figures.items()
        for way, seconds in found["seconds"].items()
    ]
    columns = {
        "frames": "{frames}",
        "way": "{way}",
        "decoding, processor's ms a token": "{seconds:.1ms}",
        "of plain": "{gain:.2f}",
        "tokens a forward": "{length:.2f}",
    }
    return ["## Targets that draft for themselves, r = 0.9", table(rows, columns)]
