"""The lossy peers of ParallelVLM's Table 2 on the embedded pair, beside stock and our methods.

    python benchmarks/parallel.py lossy --out benchmarks/results/parallel_lossy

Each clip is answered by every way in turn. A is the share of an answer's tokens that the full
target accepts (appendix A); facts are those of the true caption. Speeds are relative to stock
`generate` on the same clips. Minutes on one core. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from draftlens_lab.bench.lossy import Dropping, accepted_tokens, answer_lossily
from draftlens_lab.bench.lossy.dycoke import DyCokeTarget
from draftlens_lab.bench.lossy.fastv import FastV
from draftlens_lab.bench.lossy.pdrop import PDrop
from draftlens_lab.bench.lossy.sparsevlm import SparseVLM
from draftlens_lab.evaluate.answers import conversation
from draftlens_lab.measure.statistics import (
    central_interval,
    format_quartiles,
    quartiles,
    resampled_ratios,
    resamples,
)
from draftlens_lab.world import HELD_OUT, sample_scene
from draftlens_lab.world.fact_reader import facts, right_facts
from draftlens_lab.world.scene import Scene
from numpy.typing import NDArray
from shared import SIDE, Benchmark, Report, caption_sample, grid, models_digest, report_of, table

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.methods.base import METHODS
from draftlens.verify import run_stock

SEEDS = range(7100, 7120)
CLIPS = {16: 20, 64: 8}
"""Number of clips of each number of frames."""

STEPS = 48
STEP_REPEATS = 7
"""Decoding steps of an answer, and answers, that processor times are measured with."""

OURS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "speculative": {"method": "speculative"},
    "specvlm": {"method": "specvlm", "pruner": "specvlm"},
    "parallelvlm": {"method": "parallelvlm", "pruner": "uv"},
}
"""Our methods with the papers' pruners, as far as they exist."""

STOCK = "stock generate"
SAME_LOOP = "nothing dropped"

PEERS: Mapping[str, Dropping] = {
    SAME_LOOP: FastV(prune_ratio=0.0),
    "FastV": FastV(),
    "SparseVLM": SparseVLM(),
    "PDrop": PDrop(),
    "DyCoke": DyCokeTarget(),
    "FastV, 10%": FastV(layer=1, prune_ratio=0.947),
    "SparseVLM, 10%": SparseVLM(prune_ratio=0.79, drop_layers=(1, 4, 9)),
    "PDrop, 10%": PDrop(keep_ratio=0.143, drop_layers=(1, 7, 13)),
    "DyCoke, 10%": DyCokeTarget(merge_ratio=0.9, prune_ratio=0.8),
}
"""The peers with their papers' settings, and with options that leave about 10% of the visual
tokens to the 20 layers of the target on average, as in Table 2."""


@dataclass(frozen=True)
class Run:
    """One answer.

    Args:
        tokens: new token ids.
        e2e, decode: seconds of the whole call, without the processor, and after its first token.
        visual, kept: visual tokens of all layers, and those that the last step reads.
    """

    tokens: list[int]
    e2e: float
    decode: float
    visual: int = 1
    kept: int = 1


Answerer = Callable[[Inputs, int], Run]
"""Answers a prompt with at most this number of new tokens."""


def measure_lossy(
    engine: Engine,
    most: int,
    clips: Mapping[int, int] = CLIPS,
    done: Collection[tuple[int, int]] = (),
) -> Iterator[list[dict[str, Any]]]:
    """All answers, one record for each way, clip and number of frames.

    Args:
        engine: the embedded pair.
        most: new tokens of an answer.
        clips: number of clips of each number of frames.
        done: number of frames and seed of clips that are left out.

    Yields:
        The records of one clip.
    """
    ways = all_ways(engine)
    for frames, count in clips.items():
        missing = [number for number in range(count) if (frames, SEEDS[number]) not in done]
        if missing:
            _warm_up(engine, ways, frames)
        for number in missing:
            yield _measure_clip(engine, ways, number, frames, most)


def _measure_clip(
    engine: Engine, ways: Mapping[str, Answerer], number: int, frames: int, most: int
) -> list[dict[str, Any]]:
    """The records of one clip; another way comes first for each clip."""
    seed = SEEDS[number]
    scene = sample_scene(HELD_OUT + seed)
    inputs = engine.process([conversation(caption_sample(seed), frames, SIDE)])
    names = list(ways)
    offset = number % len(names)
    records = []
    for name in names[offset:] + names[:offset]:
        run = ways[name](inputs, most)
        labels = {"way": name, "clip": seed, "frames": frames}
        records.append({**labels, **_judged(engine, inputs, scene, run)})
    return records


def all_ways(engine: Engine) -> dict[str, Answerer]:
    """Every way of answering by its name, stock first."""
    ways: dict[str, Answerer] = {STOCK: _stock(engine)}
    for name, method in OURS.items():
        if name in METHODS:
            ways[name] = _our_method(engine, method)
    for name, dropping in PEERS.items():
        ways[name] = _peer(engine, dropping)
    return ways


def _stock(engine: Engine) -> Answerer:
    def answer(inputs: Inputs, most: int) -> Run:
        backbone = engine.target.backbone
        run = run_stock(backbone, inputs.target, max_new_tokens=most, do_sample=False)
        return Run(run.tokens[0], run.e2e, run.decode)

    return answer


def _our_method(engine: Engine, method: Mapping[str, Any]) -> Answerer:
    def answer(inputs: Inputs, most: int) -> Run:
        result = engine.answer(inputs, method=method, max_new_tokens=most).run()
        stats = result.stats
        return Run(result.tokens[0], stats.e2e, stats.e2e - stats.ttft)

    return answer


def _peer(engine: Engine, dropping: Dropping) -> Answerer:
    backbone = engine.target.backbone

    def answer(inputs: Inputs, most: int) -> Run:
        clock = Clock(Stats())
        prepared = backbone.prepare(inputs.target, max_new_tokens=most, do_sample=False)
        prompt = backbone.encode(prepared)
        found = answer_lossily(backbone, prepared, prompt, dropping, clock)
        stats = clock.stats
        return Run(found.tokens, stats.e2e, stats.e2e - stats.ttft, found.visual, found.kept)

    return answer


def measure_steps(
    engine: Engine, lengths: Collection[int], repeats: int = STEP_REPEATS
) -> dict[str, dict[str, list[float]]]:
    """Processor seconds of one decoding step by number of frames and way, one for each repeat.

    They say what a step costs even while other work shares the processor; the ways take turns.
    """
    steps: dict[str, dict[str, list[float]]] = {}
    for frames in lengths:
        inputs = engine.process([conversation(caption_sample(SEEDS[0]), frames, SIDE)])
        of_length: dict[str, list[float]] = {STOCK: [], **{name: [] for name in PEERS}}
        for repeat in range(1 + repeats):
            for name, seconds in of_length.items():
                step = _step_seconds(engine, inputs, name)
                if repeat:
                    seconds.append(step)
        steps[str(frames)] = of_length
    return steps


def _step_seconds(engine: Engine, inputs: Inputs, name: str) -> float:
    """Processor seconds of a step, the mean over the steps of one answer."""
    backbone = engine.target.backbone
    times: list[float] = []

    def note(event: Any) -> None:
        times.append(time.process_time())

    options: dict[str, Any] = {"max_new_tokens": 1 + STEPS, "do_sample": False}
    if name == STOCK:
        tokens = run_stock(backbone, inputs.target, on_token=note, **options).tokens[0]
    else:
        prepared = backbone.prepare(inputs.target, **options)
        prompt = backbone.encode(prepared)
        tokens = answer_lossily(backbone, prepared, prompt, PEERS[name], on_prefilled=note).tokens
        note(None)
    assert len(tokens) == 1 + STEPS
    return (times[-1] - times[0]) / STEPS


def _warm_up(engine: Engine, ways: Mapping[str, Answerer], frames: int) -> None:
    """One short answer of each way, not counted."""
    inputs = engine.process([conversation(caption_sample(SEEDS[0] - 1), frames, SIDE)])
    for answer in ways.values():
        answer(inputs, 16)


def _judged(engine: Engine, inputs: Inputs, scene: Scene, run: Run) -> dict[str, Any]:
    """A run as JSON values, with its accepted tokens and its right facts."""
    backbone = engine.target.backbone
    prepared = backbone.prepare(inputs.target, max_new_tokens=1, do_sample=False)
    accepted = accepted_tokens(backbone, prepared, backbone.encode(prepared), run.tokens)
    text = engine.target.processor.tokenizer.decode(run.tokens, skip_special_tokens=True)
    count = right_facts(text.strip(), facts(scene))
    return {
        **vars(run),
        "accepted": sum(accepted),
        "facts_right": count.right,
        "facts": count.total,
    }


def summarize(records: Sequence[Mapping[str, Any]], frames: int) -> dict[str, dict[str, Any]]:
    """Figures of every way at a number of frames, with 95% bootstrap intervals over clips.

    Returns:
        By way: `A`, `facts`, `decode` (seconds per token of stock / of the way), `e2e` (seconds of
        stock / of the way), each as (value, low, high); `same_loop` (as `decode`, relative to the
        same loop with nothing dropped), `retention` and `identical` (clips).
    """
    of_length = [record for record in records if record["frames"] == frames]
    by_way: dict[str, list[Mapping[str, Any]]] = {}
    for record in sorted(of_length, key=lambda one: one["clip"]):
        by_way.setdefault(record["way"], []).append(record)
    stock = by_way[STOCK]
    same_loop = by_way[SAME_LOOP]
    draws = resamples(len(stock), seed=frames)
    both = partial(_both, everything=np.arange(len(stock))[None], draws=draws)
    figures = {}
    for way, runs in by_way.items():
        figures[way] = {
            "A": both(partial(_ratio, runs, "accepted", "tokens")),
            "facts": both(partial(_ratio, runs, "facts_right", "facts")),
            "decode": both(partial(_gain_of, _step, stock, runs)),
            "same_loop": both(partial(_gain_of, _step, same_loop, runs)),
            "e2e": both(partial(_gain_of, _seconds, stock, runs)),
            "retention": sum(run["kept"] for run in runs) / sum(run["visual"] for run in runs),
            "identical": sum(
                run["tokens"] == reference["tokens"]
                for run, reference in zip(runs, stock, strict=True)
            ),
            "clips": len(runs),
        }
    return figures


Indices = NDArray[np.int64]
Runs = Sequence[Mapping[str, Any]]


def _both(
    figure: Callable[[Indices], NDArray[np.float64]], everything: Indices, draws: Indices
) -> tuple[float, float, float]:
    """A figure over all clips, and the ends of its interval."""
    return float(figure(everything)[0]), *central_interval(figure(draws))


def _gain_of(
    seconds: Callable[[Runs, Indices], NDArray[np.float64]],
    slow: Runs,
    fast: Runs,
    indices: Indices,
) -> NDArray[np.float64]:
    """Seconds of some runs over those of others."""
    return seconds(slow, indices) / seconds(fast, indices)


def _ratio(runs: Runs, above: str, below: str, indices: Indices) -> NDArray[np.float64]:
    numerators = [_count(run[above]) for run in runs]
    denominators = [_count(run[below]) for run in runs]
    return resampled_ratios(numerators, denominators, indices)


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else int(value)


def _step(runs: Runs, indices: Indices) -> NDArray[np.float64]:
    """Microseconds of decoding for each token after the first."""
    microseconds = [round(1e6 * run["decode"]) for run in runs]
    return resampled_ratios(microseconds, [len(run["tokens"]) - 1 for run in runs], indices)


def _seconds(runs: Runs, indices: Indices) -> NDArray[np.float64]:
    """Microseconds of a whole call, the mean over clips."""
    return resampled_ratios([round(1e6 * run["e2e"]) for run in runs], [1] * len(runs), indices)


def _gain(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """How much cheaper a step is than with nothing dropped, medians."""
    return statistics.median(seconds[SAME_LOOP]) / statistics.median(seconds[name])


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each clip."""
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    weights = models_digest(engine)
    before = report_of(args) if args.resume else {}
    if before.get("weights") != weights:
        before = {}
    records: list[dict[str, Any]] = before.get("runs", [])
    steps = before.get("steps") or measure_steps(engine, args.frames, args.step_repeats)
    clips = {frames: min(args.clips or CLIPS[frames], CLIPS[frames]) for frames in args.frames}
    done = {(record["frames"], record["clip"]) for record in records}
    found = measure_lossy(engine, args.max_new_tokens, clips, done)
    for of_clip in chain(found, [[]]):  # a report also where no clip is missing
        records += of_clip
        frames = sorted({record["frames"] for record in records})
        yield {
            "options": {name: str(dropping) for name, dropping in PEERS.items()},
            "steps": steps,
            "summaries": {str(count): summarize(records, count) for count in frames},
            "runs": records,
            "weights": weights,
        }


def page(report: Report) -> list[str]:
    """Figures by number of frames, steps and options."""
    columns: dict[str, Any] = {
        "way": "{way}",
        "A, %": lambda row: interval(row["A"], 100, 1),
        "facts right, %": lambda row: interval(row["facts"], 100, 1),
        "identical": "{identical} of {clips}",
        "visual tokens read, %": lambda row: f"{100 * row['retention']:.0f}",
        "decode, x stock": lambda row: interval(row["decode"], 1, 2),
        "decode, x same loop": lambda row: interval(row["same_loop"], 1, 2),
        "end to end, x stock": lambda row: interval(row["e2e"], 1, 2),
    }
    blocks = [
        "95% intervals by bootstrap over clips. Decode: seconds for each token after the first. "
        "Visual tokens read: while decoding, the mean over layers."
    ]
    for frames, figures in report["summaries"].items():
        clips = f"{figures[STOCK]['clips']} of {CLIPS[int(frames)]} clips"
        lossy = PEERS.keys() - {SAME_LOOP}
        rows = [
            {"way": f"{way} (lossy)" if way in lossy else way, **row}
            for way, row in figures.items()
        ]
        blocks += [f"## {frames} frames, {clips}", table(rows, columns)]
    steps = report["steps"]

    def step(name: str, column: str) -> str:
        seconds = steps[column.split()[0]]
        spread = format_quartiles(quartiles([1e3 * one for one in seconds[name]]))
        return f"{spread}, x{_gain(seconds, name):.2f}"

    names = next(iter(steps.values()))
    options = [f"- {name}: `{options}`" for name, options in report["options"].items()]
    return [
        *blocks,
        "## Processor time of a decoding step, ms",
        grid("way", names, [f"{frames} frames" for frames in steps], step),
        "## Options",
        "\n".join(options),
    ]


def interval(figure: Sequence[float], scale: float, digits: int) -> str:
    """A figure with the ends of its interval."""
    value, low, high = (f"{scale * end:.{digits}f}" for end in figure)
    return value if low == high else f"{value} ({low} to {high})"


BENCHMARK = Benchmark(
    "parallel_lossy",
    __doc__,
    "Lossy peers of ParallelVLM's Table 2",
    measure,
    page,
    {
        "--clips": {"type": int, "help": "at most this many clips of each length"},
        "--frames": {"type": int, "nargs": "+", "choices": tuple(CLIPS), "default": list(CLIPS)},
        "--step-repeats": STEP_REPEATS,
        "--resume": {
            "action": "store_true",
            "help": "keep the clips that OUT.json has of these weights",
        },
    },
)
