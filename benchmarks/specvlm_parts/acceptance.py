"""Acceptance by pruner and ratio."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from draftlens_lab.world.samples import Sample
from shared import grid, models_digest, remembered

from draftlens.engine import Engine
from specvlm_parts.scenes import (
    KINDS,
    TREES,
    Scene,
    Settings,
    check,
    engine_passes,
    passes,
    pruning_of,
    ranks,
    read_scene,
    samples_of,
)

RATIOS = (0.5, 0.75, 0.9, 0.95, 0.97)
TEMPORAL = ("frames", "fastvid", "dycoke")
WINDOWS = ("front", "middle", "end")
MASSES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)

DRAWS = 3
"""Number of seeds of pruner `random`."""

CALIBRATION_SAMPLES = 4
"""Number of samples that λ is calibrated on; they are not used for anything else."""

CALIBRATION_RATIO = 0.9

CHECKED_CASES = ("specvlm 0.9", "random 0.9")

SELF = {
    "self, prefill": {"method": "self-sd", "kv": "prefill"},
    "self, gather": {"draft": "self"},
    "self, sparse": {"method": "self-sd", "kv": "sparse"},
    "self, random": {"draft": "self", "pruner": "random"},
}

TREE_TITLES = {"tree": "EAGLE's tree, 25 nodes", "chain": "Chain, γ = 5"}

Counts = dict[str, list[list[int]]]
"""By case and clip: tokens after the first, passes of a chain, passes of a tree."""


def measure(engine: Engine, args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Counts by case, for each number of frames.

    Args:
        engine: the pair.
        args: options of the benchmark.
        kind: one of `KINDS`.
    """
    return {str(frames): measure_length(engine, kind, frames, args) for frames in args.frames}


def measure_length(
    engine: Engine, kind: str, frames: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Counts of every case over the same samples of this number of frames."""
    ends_at = time.monotonic() + 60 * args.minutes
    read = " after the first turn" * (kind == "chat")
    run = f"{kind}{read} {frames} {args.max_new_tokens}"
    keep = args.keep and args.keep / models_digest(engine)
    curve = remembered(keep, run, partial(calibrate, engine, kind, frames, args.max_new_tokens))
    mass = float(max(curve, key=lambda value: curve[value]))
    counts: Counts = {name: [] for name in cases(mass)}
    self_counts: Counts = {}
    visual = 0
    for index, sample in enumerate(samples_of(kind, args.clips, frames)):
        if index and time.monotonic() > ends_at:
            break
        is_checked = index < args.checked
        measured = partial(measure_clip, engine, sample, frames, mass, args, is_checked)
        row = remembered(keep, f"{run} {index}{' checked' * is_checked}", measured)
        visual = row["visual"]
        for name, found in row["counts"].items():
            counts[name].append(found)
        for name, found in row["self"].items():
            self_counts.setdefault(name, []).append(found)
    return {
        "visual": visual,
        "mass": mass,
        "masses": curve,
        "counts": counts,
        "self": self_counts,
        "checked": min(args.checked, len(counts["all"])),
    }


def measure_clip(
    engine: Engine,
    sample: Sample,
    frames: int,
    mass: float,
    args: argparse.Namespace,
    is_checked: bool,
) -> dict[str, Any]:
    """Counts of every case on one sample, and those of self-speculation if it is checked."""
    settings_by_case = cases(mass)
    scene = read_scene(engine, sample, frames, args.max_new_tokens)
    counts = {name: count(engine, scene, draws) for name, draws in settings_by_case.items()}
    self_counts = {}
    if is_checked:
        for name in CHECKED_CASES:
            check(engine, scene, settings_by_case[name][0], args.max_new_tokens)
        self_counts = {
            name: engine_counts(engine, scene, settings, args.max_new_tokens)
            for name, settings in SELF.items()
        }
    return {"visual": int(scene.prompt.visual.sum()), "counts": counts, "self": self_counts}


def cases(mass: float) -> dict[str, list[Settings]]:
    """Name of each case to the settings of its draws.

    Args:
        mass: the calibrated λ.
    """
    table: dict[str, list[Settings]] = {
        "all": [{"prune_ratio": 0.0}],
        "none": [{"prune_ratio": 1.0}],
    }
    for ratio in RATIOS:
        base = {"prune_ratio": ratio}
        table[f"specvlm {ratio}"] = [
            {**base, "pruner": {"name": "specvlm", "attention_mass": mass}}
        ]
        table[f"specvlm, λ 0.4 {ratio}"] = [base]
        for pruner in ("attention", "uniform", "grid", *TEMPORAL):
            table[f"{pruner} {ratio}"] = [{**base, "pruner": pruner}]
        for window in WINDOWS:
            table[f"window {window} {ratio}"] = [
                {**base, "pruner": {"name": "window", "window": window}}
            ]
        table[f"random {ratio}"] = [
            {**base, "pruner": {"name": "random", "seed": seed}} for seed in range(DRAWS)
        ]
    return table


def count(engine: Engine, scene: Scene, draws: Sequence[Settings]) -> list[int]:
    """Tokens, and passes of each of TREES, over all draws."""
    rows = [ranks(engine, scene, pruning_of(settings)) for settings in draws]
    tokens = sum(len(row) for row in rows)
    return [tokens, *(sum(passes(row, tree) for row in rows) for tree in TREES.values())]


def engine_counts(
    engine: Engine, scene: Scene, settings: Settings, max_new_tokens: int
) -> list[int]:
    """The same counts by running the engine, which a draft that shares the target's cache needs."""
    counts = [engine_passes(engine, scene, settings, tree, max_new_tokens) for tree in TREES]
    return [len(scene.answer) - 1, *counts]


def calibrate(engine: Engine, kind: str, frames: int, max_new_tokens: int) -> dict[str, float]:
    """Tokens per pass of the tree on some samples by λ, as in appendix A of the paper."""
    tokens = dict.fromkeys(MASSES, 0)
    tree_passes = dict.fromkeys(MASSES, 0)
    for sample in samples_of(kind, CALIBRATION_SAMPLES, frames, calibration=True):
        scene = read_scene(engine, sample, frames, max_new_tokens)
        for mass in MASSES:
            settings = {
                "prune_ratio": CALIBRATION_RATIO,
                "pruner": {"name": "specvlm", "attention_mass": mass},
            }
            row = count(engine, scene, [settings])
            tokens[mass] += row[0]
            tree_passes[mass] += row[2]
    return {str(mass): tokens[mass] / tree_passes[mass] for mass in MASSES}


def length(counts: Counts, tree: str, case: str, ratio: str = "") -> str:
    """Mean acceptance length: tokens emitted by passes / passes, over all clips."""
    totals = np.sum(counts[f"{case} {ratio.removeprefix('r = ')}".strip()], 0)
    return f"{totals[0] / totals[1 + list(TREES).index(tree)]:.2f}"


def report(figures: Mapping[str, Any], kind: str) -> list[str]:
    """Acceptance lengths by pruner and ratio, by λ and by self-speculation."""
    blocks = [f"## Mean acceptance length: {KINDS[kind]}"]
    for frames, part in figures.items():
        counts = part["counts"]
        number, visual = len(counts["all"]), part["visual"]
        blocks.append(f"### {number} {KINDS[kind]} of {frames} frames, {visual} visual tokens")
        suffix = f" {RATIOS[0]}"
        names = [case.removesuffix(suffix) for case in counts if case.endswith(suffix)]
        for tree, title in TREE_TITLES.items():
            every, none = (length(counts, tree, case) for case in ("all", "none"))
            blocks += [
                f"{title}: all visual tokens {every}, none {none}.",
                grid("pruner", names, [f"r = {r}" for r in RATIOS], partial(length, counts, tree)),
            ]
        curve = ", ".join(f"{mass}: {value:.2f}" for mass, value in part["masses"].items())
        totals = {name: np.sum(rows, 0) for name, rows in part["self"].items()}
        own = ", ".join(f"{name} {total[0] / total[2]:.2f}" for name, total in totals.items())
        blocks.append(
            f"λ by the tree's length at r = {CALIBRATION_RATIO} on {CALIBRATION_SAMPLES} others: "
            f"{curve}; `specvlm` has {part['mass']}. Self-speculation at r = 0.9, tree, the first "
            f"{part['checked']}, whose tokens and passes the engine confirmed: {own}."
        )
    return blocks
