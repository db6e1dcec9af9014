"""Choices of visual tokens in relation to a random choice, on all kinds of requests.

    python benchmarks/specvlm.py --parts robust --clips 20 --max-new-tokens 120 --keep runs/robust \
        --out benchmarks/results/specvlm_robust

The rule of `draftlens.pruning.base.order_sample` and its share were chosen on other clips.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from draftlens_lab.evaluate.parts import part_samples
from draftlens_lab.evaluate.samples import question_samples
from draftlens_lab.measure.statistics import central_interval, resampled_ratios, resamples
from draftlens_lab.world.samples import Sample
from shared import caption_sample, grid, models_digest, remembered

from draftlens.core.prefill_readings import ATTENTION
from draftlens.engine import Engine
from draftlens.pruning.similarity import UVPruner
from specvlm_parts.scenes import TREES, Settings, passes, pruning_of, ranks, read_scene

RATIOS = (0.5, 0.75, 0.9, 0.97)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
DRAWS = 4
SEED = 80
"""Of samples; the rule was chosen on those of 300 to 500 and captions from 3,000 to 5,000, the
default share on those of 60 and captions from 6,000."""

FIRST_CAPTION = 8000
QUESTIONS = ("retrieval", "attribute", "ordering", "counting")
KINDS = ("caption", "chat", "focus", *QUESTIONS)
RANDOM = "random"

Counts = dict[str, list[list[int]]]
"""By case and sample: tokens after the first, and passes of each of TREES, over all draws."""


def cases(ratio: float) -> dict[str, list[Settings]]:
    """Name of each case to the settings of its draws."""
    table: dict[str, list[Any]] = {
        RANDOM: [{"name": "random", "seed": seed} for seed in range(DRAWS)],
        "specvlm": ["specvlm"],
        "uv": ["uv"],
        "uv-sampled": ["uv-sampled"],
    }
    for share in SHARES:
        table[f"attention-sampled, {share}"] = [{"name": "attention-sampled", "share": share}]
    return {
        f"{name} {ratio}": [{"prune_ratio": ratio, "pruner": pruner} for pruner in pruners]
        for name, pruners in table.items()
    }


def samples_of(kind: str, number: int, frames: int) -> list[Sample]:
    """Held-out samples with one request each; questions have short answers and cost less, so there
    are twice as many."""
    if kind == "caption":
        return [caption_sample(FIRST_CAPTION + index) for index in range(number)]
    if kind in QUESTIONS:
        return question_samples(kind, 2 * number, SEED)
    return part_samples(kind, number, SEED, frames)


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Counts by kind, for each number of frames, of as many samples as the minutes allow."""
    keep = args.keep and args.keep / models_digest(engine)
    found: dict[str, dict[str, Counts]] = {}
    for frames in args.frames:
        for kind in KINDS:
            ends_at = time.monotonic() + 60 * args.minutes
            counts: Counts = {}
            for index, sample in enumerate(samples_of(kind, args.clips, frames)):
                if index and time.monotonic() > ends_at:
                    break
                name = f"robust {kind} {frames} {args.max_new_tokens} {index}"
                measured = partial(count, engine, sample, frames, args.max_new_tokens)
                for case, row in remembered(keep, name, measured).items():
                    counts.setdefault(case, []).append(row)
            found.setdefault(str(frames), {})[kind] = counts
    return found


@torch.inference_mode()
def count(engine: Engine, sample: Sample, frames: int, max_new_tokens: int) -> dict[str, list[int]]:
    """One row of every case of `Counts`."""
    spec = ATTENTION | UVPruner().readings
    scene = read_scene(engine, sample, frames, max_new_tokens, spec)
    table = {}
    for ratio in RATIOS:
        for name, draws in cases(ratio).items():
            rows = [ranks(engine, scene, pruning_of(settings)) for settings in draws]
            all_passes = [sum(passes(row, tree) for row in rows) for tree in TREES.values()]
            table[name] = [sum(map(len, rows)), *all_passes]
    return table


def report(figures: Mapping[str, Any]) -> list[str]:
    """For each kind the random choice's tokens a forward, and all others in relation to it."""
    blocks = [
        "## Choices in relation to a random one",
        f"Tokens per target forward with EAGLE's tree: of `random` ({DRAWS} draws) as they are, of "
        "the others the difference from `random` in per cent, with the bootstrap's 95% interval, "
        "paired by clip. `attention-sampled` by its `share`.",
    ]
    columns = {f"r = {ratio}": ratio for ratio in RATIOS}
    for frames, kinds in figures.items():
        for kind, counts in merged(kinds).items():
            number = len(counts[f"{RANDOM} {RATIOS[0]}"])
            if number:
                names = dict.fromkeys(case.rsplit(" ", 1)[0] for case in counts)
                cell = partial(_cell, counts, columns)
                blocks += [
                    f"### {kind}, {frames} frames: {number}",
                    grid("by", names, columns, cell),
                ]
    return blocks


def merged(kinds: Mapping[str, Counts]) -> dict[str, Counts]:
    """The families of questions as one more kind: each has few tokens."""
    together: Counts = {}
    for kind in QUESTIONS:
        for case, rows in kinds.get(kind, {}).items():
            together.setdefault(case, []).extend(rows)
    return {**kinds, "all questions": together} if together else dict(kinds)


def _cell(counts: Counts, columns: Mapping[str, float], name: str, column: str) -> str:
    ratio = columns[column]
    value, low, high = relative(counts, name, ratio)
    if name == RANDOM:
        return f"{value:.2f}"
    return f"{value:+.1%} ({low:+.1%} to {high:+.1%})"


def relative(
    counts: Counts, name: str, ratio: float, tree: str = "tree"
) -> tuple[float, float, float]:
    """Tokens a forward in relation to `random`, minus 1, with the 95% interval; of `random` tokens
    a forward."""
    column = 1 + list(TREES).index(tree)
    table = {case: np.asarray(counts[f"{case} {ratio}"]) for case in (name, RANDOM)}
    lengths = {
        case: float(rows[:, 0].sum() / rows[:, column].sum()) for case, rows in table.items()
    }
    if name == RANDOM:
        return (lengths[RANDOM],) * 3
    indices = resamples(len(table[RANDOM]), 0)
    quotients = [
        resampled_ratios(rows[:, 0].tolist(), rows[:, column].tolist(), indices)
        for rows in table.values()
    ]
    low, high = central_interval(quotients[0] / quotients[1] - 1)
    return lengths[name] / lengths[RANDOM] - 1, low, high
