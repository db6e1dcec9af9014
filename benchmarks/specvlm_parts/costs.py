"""Costs of the probe, of a pruned draft's step and of a verified tree."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from draftlens_lab.measure.pruning import kept_indices
from shared import (
    Case,
    PrefilledPrompt,
    backbones,
    caption_sample,
    encoded_prompt,
    grid,
    interleaved_seconds,
    median_seconds,
    range_line,
    rotated,
    sample_inputs,
)

from draftlens.core.tree import from_paths
from draftlens.drafting.adaptive.round_plan import likeliest_paths
from draftlens.engine import Engine
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from specvlm_parts.long import CLIP as LONG
from specvlm_parts.scenes import PAPER

SIZES = (1, 6, 13, 26, 51)

RATES = (0.8, 0.08, 0.04, 0.02)
"""Acceptance by rank of a typical pair, which shapes trees of the given sizes."""

NUM_KEPT = 500
"""Number of visual tokens that a pruned draft keeps."""

PROBE_FRAMES = 500
STEP_FRAMES = (64, 125, 250, 500, 1000)

SHORT_CLIPS = range(8)
SHORT_FRAMES = 63
LONG_FRAMES = 1000


def probe(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Time and peak memory of the target's prefill at 8,000 visual tokens, with the probe and
    without."""
    target, _ = backbones(engine)
    frames = args.long_frames or PROBE_FRAMES
    prompt = encoded_prompt(target, sample_inputs(engine, caption_sample(0), frames).target)

    def prefill(name: str) -> float:
        attention_probe = AttentionProbe(prompt.visual, prompt.lengths) if name == "with" else None
        cache = target.new_cache(prompt, 1)
        start = time.perf_counter()
        target.prefill(prompt, cache, attention_probe)
        return time.perf_counter() - start

    cases = {name: partial(prefill, name) for name in ("without", "with")}
    times = interleaved_returns(cases, args.repeats)
    pairs = zip(times["with"], times["without"], strict=True)
    ratios = [with_probe / without for with_probe, without in pairs]
    return {
        "visual": int(prompt.visual.sum()),
        "times": times,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "peak": {name: peak_bytes(case) for name, case in cases.items()},
    }


def interleaved_returns(
    cases: Mapping[str, Callable[[], float]], repeats: int
) -> dict[str, list[float]]:
    """What each case returns in each repeat, with the cases interleaved, after a warm-up."""
    for case in cases.values():
        case()
    values: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name in rotated(list(cases), repeat):
            values[name].append(cases[name]())
    return values


def peak_bytes(call: Callable[[], Any], attempts: int = 3) -> int:
    """Largest number of bytes of tensors during a call, beyond those before it.

    Args:
        call: the function to call.
        attempts: number of calls, since the profiler occasionally loses events; the largest of
            their figures is returned.
    """
    return max(_profiled_peak_bytes(call) for _ in range(attempts))


def _profiled_peak_bytes(call: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    allocated = 0
    peak = 0
    for event in run.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return peak


def step(engine: Engine, args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of the processor for draft steps by visual tokens of the prompt, with all of
    them and with `NUM_KEPT` of them: the axes of figure 2(a)."""
    _, draft = backbones(engine)
    cases: dict[str, Case] = {}
    longest = args.long_frames or STEP_FRAMES[-1]
    for frames in STEP_FRAMES:
        shown = max(1, frames * longest // STEP_FRAMES[-1])
        inputs = sample_inputs(engine, caption_sample(0), shown)
        whole = encoded_prompt(draft, inputs.draft or inputs.target)
        visual = int(whole.visual.sum())
        few = pruned_evenly(whole, min(NUM_KEPT, visual))
        for name, prompt in (("all", whole), (f"{NUM_KEPT} kept", few)):
            cases[f"{name} {visual}"] = PrefilledPrompt.of(draft, prompt).chain_case(1)
    times = interleaved_seconds(cases, 12 * args.repeats, time.process_time)
    return {name: [1e3 * value for value in seconds] for name, seconds in times.items()}


def pruned_evenly(prompt: Prompt, keep: int) -> Prompt:
    """A prompt of one row with this number of its visual tokens, from the first to the last at
    equal distances."""
    visual = prompt.visual[0]
    choice = torch.linspace(0, int(visual.sum()) - 1, keep).long()
    return gather(prompt, [kept_indices(visual, choice)])


def tree(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a verification by tree size and context, and decode seconds with each fixed
    tree and with the automatic one."""
    target, _ = backbones(engine)
    cases: dict[str, Case] = {}
    for frames in (SHORT_FRAMES, LONG_FRAMES):
        inputs = sample_inputs(engine, caption_sample(0), frames)
        prefilled = PrefilledPrompt.of(target, encoded_prompt(target, inputs.target))
        visual = int(prefilled.prompt.visual.sum())
        for nodes in SIZES:
            topology = from_paths(tree_paths(nodes))
            cases[f"{visual} visual, {nodes} nodes"] = prefilled.forward_case(topology)
    verification = milliseconds(cases, 4 * args.repeats)
    half = args.repeats // 2
    short = decode_seconds(engine, args, SHORT_FRAMES, SHORT_CLIPS, max(3, half))
    long = decode_seconds(engine, args, LONG_FRAMES, [LONG], max(2, half))
    return {"verify_ms": verification, "decode_seconds": {"1009": short, "16001": long}}


def milliseconds(cases: Mapping[str, Case], repeats: int) -> dict[str, float]:
    """Median milliseconds of each case, with the cases interleaved."""
    return {name: 1e3 * value for name, value in median_seconds(cases, repeats).items()}


def tree_paths(nodes: int) -> list[list[int]]:
    """Paths of the likeliest tree of this number of nodes."""
    return [list(path) for path in likeliest_paths(RATES, nodes)]


def decode_seconds(
    engine: Engine, args: argparse.Namespace, frames: int, clips: Sequence[int], repeats: int
) -> dict[str, list[list[float]]]:
    """Decode seconds per token with every fixed tree and with `auto`, all interleaved.

    Returns:
        By tree, clip and repeat.
    """
    methods = tree_methods(max(0.9, 1 - NUM_KEPT / (16 * frames + 1)))
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    prompts = [sample_inputs(engine, caption_sample(seed), frames) for seed in clips]
    # The automatic tree learns from earlier answers, as on a server.
    engine.answer(prompts[0], method=methods["auto"], **options).run()
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in methods}
    for repeat in range(repeats):
        for number, inputs in enumerate(prompts):
            for name in rotated(list(methods), repeat):
                result = engine.answer(inputs, method=methods[name], **options).run()
                seconds[name][number].append(result.stats.tpot)
    return seconds


def tree_methods(ratio: float) -> dict[str, dict[str, Any]]:
    """Method specvlm with this prune ratio and each tree, by the tree's name."""
    trees: dict[str, Any] = {f"{nodes} nodes": tree_paths(nodes) for nodes in SIZES}
    trees["auto"] = "auto"
    base = {**PAPER, "prune_ratio": ratio}
    return {name: {**base, "tree": paths} for name, paths in trees.items()}


def report_probe(figures: Mapping[str, Any]) -> list[str]:
    """A paragraph on the probe."""
    without, with_probe = (figures["peak"][name] for name in ("without", "with"))
    return [
        f"## The probe at {figures['visual']} visual tokens",
        f"Prefill with the probe / without: {range_line(figures['ratios'])}, "
        f"{len(figures['ratios'])} pairs. Peak memory of tensors: {with_probe / without:.3f} times "
        f"({without / 1e6:.0f} MB without).",
    ]


def report_step(figures: Mapping[str, float | list[float]]) -> list[str]:
    """Medians of draft steps."""

    def median(size: int, column: str) -> str:
        case = column.removesuffix(", ms")
        return f"{np.median(figures[f'{case} {size}']):.2f}"

    sizes = sorted({int(name.split()[-1]) for name in figures})
    columns = ("all, ms", f"{NUM_KEPT} kept, ms")
    return ["## A draft step by context", grid("visual tokens", sizes, columns, median)]


def report_tree(figures: Mapping[str, Any]) -> list[str]:
    """Verifications, and decoding with each tree."""
    costs, decode = figures["verify_ms"], figures["decode_seconds"]
    runs = ", ".join(
        f"{len(by_tree['auto'])} clips, {len(by_tree['auto'][0])} repeats at {visual}"
        for visual, by_tree in decode.items()
    )

    def verification(nodes: int, column: str) -> str:
        context = column.removesuffix(", ms")
        return f"{costs[f'{context}, {nodes} nodes']:.2f}"

    def seconds(name: str, column: str) -> str:
        clips = decode[column.split()[2]][name]
        return f"{1e3 * statistics.mean(map(statistics.median, clips)):.2f}"

    contexts = sorted({int(name.split()[0]) for name in costs})
    return [
        "## Verification by tree size",
        grid("nodes", SIZES, [f"{visual} visual, ms" for visual in contexts], verification),
        grid(
            "tree",
            decode["1009"],
            [f"decode at {visual} visual, ms a token" for visual in decode],
            seconds,
        ),
        f"Means over clips of medians over repeats ({runs}); fixed trees are the likeliest of "
        "their size.",
    ]
