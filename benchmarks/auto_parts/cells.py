"""Simulated cells: cost curves, acceptance, lengths and batches, without models."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation import (
    Machine,
    Seconds,
    Token,
    drawn_text,
    plain_seconds,
    play_auto,
    play_fixed,
    recorded_text,
)

from draftlens.core.tree import EAGLE_PATHS, EMPTY, Topology, chain, from_paths
from draftlens.drafting.adaptive.controller import Costs, PairHistory
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts

REAL = json.loads((Path(__file__).parents[1] / "real_costs.json").read_text())
"""Costs and acceptance of real weights; the file says which."""

WIDTHS = (1, 2, 3, 4, 6, 9, 13, 26, 49, 104, 208, 416, 784)
"""Widths at which a calibration is taken to have measured the curves."""

FIXED: tuple[Topology, ...] = (
    EMPTY,
    *map(chain, (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)),
    from_paths(EAGLE_PATHS),
)
"""Plain decoding, chains and EAGLE's tree; `auto` has to be as fast as the best of them."""

WARM_TOKENS = 256
"""Tokens of earlier answers after which a pair is warm."""

WARM_ANSWERS = 3
"""Answers of a warm pair that are measured."""


@dataclass(frozen=True)
class Cell:
    """A machine, an acceptance, a length and a batch.

    Args:
        curve: name of the target's curve.
        ratio: cost of a target forward over one token relative to the draft's.
        acceptance: chance of a first choice, `"midway"` for 0.95 and then none, or the name of a
            recorded prompt.
        length: tokens of the answer.
        rows: of the batch.
        prompt: tokens that the draft has to read before it drafts, in each row.
    """

    curve: str
    ratio: float
    acceptance: float | str
    length: int
    rows: int = 1
    prompt: int = 0


@dataclass(frozen=True)
class Figures:
    """Speeds in a cell, relative to plain decoding (decode time only).

    Args:
        best: the best fixed chain or tree.
        best_shape: its depth and number of nodes.
        cold: the automatic tree in the first answer of a pair.
        warm: the automatic tree after `WARM_TOKENS` tokens of other answers, on further texts.
        warm_best: the best fixed chain or tree on these texts.
        worst: the slowest single first answer.
    """

    best: float
    best_shape: tuple[int, int]
    cold: float
    warm: float
    warm_best: float
    worst: float


def simulated_cells() -> Iterator[Cell]:
    """All cells with drawn acceptance."""
    for curve in ("float32", "bfloat16", "launch-bound", "linear"):
        for ratio in (2, 3, 6, 20):
            for acceptance in (0.95, 0.7, 0.4, 0.0, "midway"):
                for length in (16, 64, 256, 1024):
                    yield Cell(curve, ratio, acceptance, length)
                if ratio in (3, 20):
                    yield Cell(curve, ratio, acceptance, 64, rows=4)
                    yield Cell(curve, ratio, acceptance, 64, rows=16)


def recorded_cells() -> Iterator[Cell]:
    """The cells of real weights: their curves and their acceptance, 64 tokens."""
    for dtype, prompts in (
        ("float32", ("chat1", "code2", "image2")),
        ("bfloat16", ("chat1", "code1", "image2")),
    ):
        costs = REAL["costs"][dtype]
        for prompt in prompts:
            yield Cell(dtype, costs["target(1)"] / costs["draft(1)"], prompt, 64)


def prompt_cells() -> Iterator[Cell]:
    """Cells in which the draft has a prompt to read before it can draft."""
    for dtype, prompts in (("float32", ("code2", "image2")), ("bfloat16", ("code1", "image2"))):
        costs = REAL["costs"][dtype]
        for acceptance in (*prompts, 0.0):
            for prompt in (26, 104):
                for length in (14, 64):
                    ratio = costs["target(1)"] / costs["draft(1)"]
                    yield Cell(dtype, ratio, acceptance, length, prompt=prompt)


def measure(cell: Cell, seeds: int) -> Figures:
    """The figures of a cell over several texts."""
    machine = machine_of(cell)
    plain = cold = 0.0
    warm = Counter[str]()
    fixed = dict.fromkeys(FIXED, 0.0)
    worst = float("inf")
    for seed in range(seeds):
        texts = texts_of(cell, seed)
        seconds = plain_seconds(machine, texts)
        plain += seconds
        for tree in FIXED:
            fixed[tree] += play_fixed(machine, texts, tree, seed).seconds
        history = _new_history(machine)
        first = play_auto(machine, texts, history, seed).seconds
        cold += first
        worst = min(worst, seconds / first)
        warm.update(_warm_seconds(cell, machine, history, seed))
    best = min(fixed, key=lambda tree: fixed[tree])
    shape = (best.depth, len(best))
    warm_best = min(warm[str(index)] for index in range(len(FIXED)))
    return Figures(
        plain / fixed[best],
        shape,
        plain / cold,
        warm["plain"] / warm["auto"],
        warm["plain"] / warm_best,
        worst,
    )


def stale_seconds(cell: Cell, wrong: str, seeds: int) -> tuple[float, float]:
    """Seconds of first answers with the right curves and with wrong ones from a file.

    Args:
        cell: with one row.
        wrong: name of the curve that the file holds for the target.
        seeds: number of texts.
    """
    machine = machine_of(cell)
    curves = _curve(machine.target), _curve(machine.draft)
    stale = _curve(_target_cost(wrong))
    scale = curves[0].seconds[0] / stale.seconds[0]
    stale = CostCurve(stale.widths, tuple(scale * seconds for seconds in stale.seconds))
    right = false = 0.0
    for seed in range(seeds):
        texts = texts_of(cell, seed)
        right += play_auto(machine, texts, _new_history(machine), seed).seconds
        wrong_history = PairHistory(Costs(ForwardCosts(stale), ForwardCosts(curves[1])))
        false += play_auto(machine, texts, wrong_history, seed).seconds
    return right / seeds, false / seeds


def _warm_seconds(
    cell: Cell, machine: Machine, history: PairHistory, seed: int
) -> dict[str, float]:
    """Seconds of answers of a warm pair: automatic, plain, and with each of `FIXED`."""
    answers = -(-WARM_TOKENS // cell.length)
    for number in range(answers):
        play_auto(machine, texts_of(cell, 1000 * (seed + 1) + number), history, number)
    seconds: dict[str, float] = defaultdict(float)
    for number in range(WARM_ANSWERS):
        texts = texts_of(cell, 10**6 + 1000 * seed + number)
        seconds["plain"] += plain_seconds(machine, texts)
        seconds["auto"] += play_auto(machine, texts, history, number).seconds
        for index, tree in enumerate(FIXED):
            seconds[str(index)] += play_fixed(machine, texts, tree, number).seconds
    return dict(seconds)


def texts_of(cell: Cell, seed: int) -> list[list[Token]]:
    """The answers of the rows of a cell."""
    seeds = range(100 * seed, 100 * seed + cell.rows)
    acceptance = cell.acceptance
    if acceptance == "midway":
        return [drawn_text(cell.length, 0.95, number, until=0.5) for number in seeds]
    if isinstance(acceptance, str):
        by_depth = recorded_depths(cell.curve, acceptance)
        return [recorded_text(cell.length, by_depth, number) for number in seeds]
    return [drawn_text(cell.length, acceptance, number) for number in seeds]


def recorded_depths(dtype: str, prompt: str) -> dict[int, int]:
    """Rounds of a recorded chain of 5 by their accepted length."""
    wanted = (dtype, prompt, "chain 5")
    run = next(r for r in REAL["runs"] if (r["dtype"], r["prompt"], r["method"]) == wanted)
    return {int(depth): count for depth, count in run["accepted_by_depth"].items()}


def machine_of(cell: Cell) -> Machine:
    """The costs of a cell."""
    target = _target_cost(cell.curve)
    if cell.curve not in REAL["costs"]:
        return Machine(target, lambda width: target(width) / cell.ratio, prompt=cell.prompt)
    draft = _interpolated(_points(cell.curve, "draft"))
    scale = target(1) / cell.ratio / draft(1)
    return Machine(target, lambda width: scale * draft(width), prompt=cell.prompt)


def _target_cost(name: str) -> Seconds:
    """Seconds by width.

    The launch-bound curve is that of the embedded pair: 1.2% for each token more. The linear one
    is that of a saturated device: 70% of a forward grow with its width.
    """
    functions: Mapping[str, Callable[[int], float]] = {
        "launch-bound": lambda width: 5.5e-3 * (1 + 0.012 * (width - 1)),
        "linear": lambda width: 0.03 * (0.3 + 0.7 * width),
    }
    if name in functions:
        return functions[name]
    return _interpolated(_points(name, "target"))


def _points(dtype: str, model: str) -> dict[int, float]:
    costs: Mapping[str, float] = REAL["costs"][dtype]
    start = len(model) + 1
    return {int(n[start:-1]): s for n, s in costs.items() if n.startswith(f"{model}(")}


def _interpolated(points: Mapping[int, float]) -> Seconds:
    """Seconds by width: on a line between two widths of similar cost, a step between others,
    proportional beyond the largest."""
    widths = sorted(points)

    def seconds(width: int) -> float:
        index = bisect_left(widths, width)
        if index == len(widths):
            return points[widths[-1]] * width / widths[-1]
        right = widths[index]
        if right == width:
            return points[right]
        left = widths[index - 1]
        if points[right] > 1.2 * points[left]:
            return points[right]
        share = (width - left) / (right - left)
        return points[left] + share * (points[right] - points[left])

    return seconds


def _curve(seconds: Seconds) -> CostCurve:
    """What a calibration would find: no width costs more than a larger one."""
    times = [seconds(width) for width in WIDTHS]
    rising = [min(times[index:]) for index in range(len(times))]
    return CostCurve(WIDTHS, tuple(rising))


def _new_history(machine: Machine) -> PairHistory:
    """A pair that was calibrated and has not answered yet."""
    return PairHistory(
        Costs(ForwardCosts(_curve(machine.target)), ForwardCosts(_curve(machine.draft)))
    )


def to_dict(cell: Cell, figures: Figures) -> dict[str, Any]:
    """A cell and its figures as JSON values."""
    return {**vars(cell), **vars(figures)}


def plain(cell: Cell, seeds: int) -> float:
    """Seconds of plain decoding, the mean of several texts."""
    machine = machine_of(cell)
    total = sum(plain_seconds(machine, texts_of(cell, seed)) for seed in range(seeds))
    return total / seeds
