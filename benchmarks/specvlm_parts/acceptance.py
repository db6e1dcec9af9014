"""Acceptance by pruner and ratio, and a verdict on each claim of figures 6 to 8 of the paper."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from draftlens_lab.measure.statistics import central_interval, resampled_ratios, resamples
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world.samples import Sample
from numpy.typing import NDArray
from shared import models_digest, remembered

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


@dataclass(frozen=True)
class Difference:
    """A difference with its 95% interval over clips.

    Args:
        value: the difference.
        low, high: ends of the interval.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.1%} ({self.low:+.1%} to {self.high:+.1%})"

    @property
    def verdict(self) -> str:
        """Whether the difference is above zero."""
        if self.low > 0:
            return "holds"
        return "the contrary" if self.high < 0 else "not seen"


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
    run = f"{kind} {frames} {args.max_new_tokens}"
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


class Lengths:
    """Mean acceptance length of every case, and of resampled clips.

    Args:
        counts: by case.
        tree: one of TREES.
    """

    def __init__(self, counts: Counts, tree: str) -> None:
        self.counts = counts
        self.column = 1 + list(TREES).index(tree)
        self.indices = resamples(len(counts["all"]), 0)

    def mean(self, case: str) -> float:
        """Tokens emitted by passes / passes, over all clips."""
        totals = np.sum(self.counts[case], 0)
        return float(totals[0] / totals[self.column])

    def resampled(self, case: str) -> NDArray[np.float64]:
        """The same of each resample."""
        table = np.asarray(self.counts[case])
        return resampled_ratios(table[:, 0].tolist(), table[:, self.column].tolist(), self.indices)

    def share_of_unpruned(self, case: str) -> tuple[float, tuple[float, float]]:
        """Length of a case / unpruned length, and its 95% interval."""
        interval = central_interval(self.resampled(case) / self.resampled("all"))
        return self.mean(case) / self.mean("all"), interval

    def margin(self, case: str, baseline: str) -> Difference:
        """Length of a case minus that of another one, as a share of the unpruned length."""
        whole = self.mean("all")
        interval = central_interval((self.resampled(case) - self.resampled(baseline)) / whole)
        return Difference((self.mean(case) - self.mean(baseline)) / whole, *interval)

    def growth(self, case: str, baseline: str, low: float, high: float) -> Difference:
        """The margin at the ratio `high` minus the margin at the ratio `low`."""
        margins = {}
        differences = {}
        for ratio in (low, high):
            names = (f"{case} {ratio}", f"{baseline} {ratio}")
            margins[ratio] = self.margin(*names).value
            differences[ratio] = self.resampled(names[0]) - self.resampled(names[1])
        change = (differences[high] - differences[low]) / self.mean("all")
        return Difference(margins[high] - margins[low], *central_interval(change))


def report(figures: Mapping[str, Any], kind: str) -> list[str]:
    """Tables and verdicts as lines of Markdown."""
    lines = [f"## Mean acceptance length: {KINDS[kind]}"]
    for frames, part in figures.items():
        number = len(part["counts"]["all"])
        title = f"{number} {KINDS[kind]} of {frames} frames, {part['visual']} visual tokens"
        lines += ["", f"### {title}", ""]
        for tree, tree_title in TREE_TITLES.items():
            lines += [*table_by_ratio(Lengths(part["counts"], tree), tree_title), ""]
        lines += [*further_lines(part), ""]
        lines.append(
            f"Counted from the draft's ranks of the answer's tokens; on the first "
            f"{part['checked']} of them the engine itself said the same tokens in as many passes."
        )
    return lines


def table_by_ratio(lengths: Lengths, title: str) -> list[str]:
    """Acceptance lengths by pruner and ratio."""
    names = [
        case.removesuffix(f" {RATIOS[0]}")
        for case in lengths.counts
        if case.endswith(f" {RATIOS[0]}")
    ]
    rows = [
        [name, *(f"{lengths.mean(f'{name} {ratio}'):.2f}" for ratio in RATIOS)] for name in names
    ]
    columns = ["pruner", *(f"r = {ratio}" for ratio in RATIOS)]
    summary = f"all visual tokens {lengths.mean('all'):.2f}, none {lengths.mean('none'):.2f}"
    return [f"{title}: {summary}.", "", *markdown_table(columns, rows)]


def further_lines(part: Mapping[str, Any]) -> list[str]:
    """Acceptance by λ and by self-speculation."""
    curve = ", ".join(f"{mass}: {value:.2f}" for mass, value in part["masses"].items())
    self_lengths = []
    for name, rows in part["self"].items():
        totals = np.sum(rows, 0)
        self_lengths.append(f"{name} {totals[0] / totals[2]:.2f}")
    return [
        f"λ by the tree's length at r = {CALIBRATION_RATIO} on {CALIBRATION_SAMPLES} others: "
        f"{curve}. `specvlm` has the best of them, {part['mass']}.",
        "",
        f"Self-speculation at r = 0.9, tree, the first {part['checked']}: "
        f"{', '.join(self_lengths)}.",
    ]
