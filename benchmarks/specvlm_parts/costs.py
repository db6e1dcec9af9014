"""What the probe, a pruned draft's step and a verified tree cost."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from shared import clip, forward_case, given, rotate, timed

from draftlens.api import Engine
from draftlens.attention import Probe
from draftlens.core.tree import Topology, ancestors, attention_mask, depths, from_paths
from draftlens.models.backbone import Backbone
from draftlens.models.gather import gather
from draftlens.ops.tree_search import likeliest_paths
from specvlm_parts.long import CLIP as LONG

SIZES = (1, 6, 13, 26, 51)
CHANCES = 2 * [[[0.8, 0.08, 0.04, 0.02]] * 8]  # a typical pair's, to shape trees of given sizes
KEPT = 500


def probe(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Time and peak memory of the target's prefill at 8,000 visual tokens, with the probe and
    without."""
    target = engine.target.backbone
    prompt = target.encode(target.prepare(given(engine, clip(0), 500).target, max_new_tokens=1))

    def prefill(name: str) -> float:
        reading = Probe(prompt.visual, prompt.lengths) if name == "with" else None
        cache = target.new_cache(prompt, 1)
        start = time.perf_counter()
        target.prefill(prompt, cache, reading)
        return time.perf_counter() - start

    times: dict[str, list[float]] = {"without": [], "with": []}
    prefill("with")
    for repeat in range(args.repeats):
        for name in rotate(list(times), repeat):
            times[name].append(prefill(name))
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    peaks = {
        name: max(peak_bytes(lambda name=name: prefill(name)) for _ in range(3)) for name in times
    }  # type: ignore[misc]
    visual = int(prompt.visual.sum())
    return {
        "visual": visual,
        "times": times,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "peak": peaks,
    }


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes that tensors held at once during a call, beyond those held before.

    Now and then the profiler loses events and says too little: call it several times.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    held = peak = 0
    for event in run.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def step(engine: Engine, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a draft step by visual tokens of the prompt, all of them and 500 kept (figure
    2a's axes)."""
    draft = engine.draft.backbone  # type: ignore[union-attr]
    cases: dict[str, Callable[[], None]] = {}
    for frames in (64, 125, 250, 500, 1000):
        inputs = given(engine, clip(0), frames)
        whole = draft.encode(draft.prepare(inputs.draft or inputs.target, max_new_tokens=1))
        visual = whole.visual[0].nonzero()[:, 0]
        stays = ~whole.visual[0]
        stays[visual[torch.linspace(0, len(visual) - 1, KEPT).long()]] = True
        for name, prompt in (
            ("all", whole),
            (f"{KEPT} kept", gather(whole, [stays.nonzero()[:, 0]])),
        ):
            cache = draft.new_cache(prompt, 40)
            draft.prefill(prompt, cache)
            cases[f"{name} {len(visual)}"] = forward_case(draft, prompt, cache, 1)
    return {
        name: 1e3 * statistics.median(times)
        for name, times in timed(cases, 12 * args.repeats).items()
    }


def tree(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a verification by tree size and context; and what each fixed tree and the
    automatic one reach."""
    target = engine.target.backbone
    cases: dict[str, Callable[[], None]] = {}
    for frames in (63, 1000):
        prompt = target.encode(
            target.prepare(given(engine, clip(0), frames).target, max_new_tokens=1)
        )
        cache = target.new_cache(prompt, 60)
        target.prefill(prompt, cache)
        for nodes in SIZES:
            cases[f"{int(prompt.visual.sum())} visual, {nodes} nodes"] = tree_case(
                target, prompt, cache, sized(nodes)
            )
    costs = {
        name: 1e3 * statistics.median(times)
        for name, times in timed(cases, 4 * args.repeats).items()
    }
    short = decode_seconds(
        engine, args, frames=63, clips=range(8), repeats=max(3, args.repeats // 2)
    )
    long = decode_seconds(
        engine, args, frames=1000, clips=[LONG], repeats=max(2, args.repeats // 2)
    )
    return {"verify_ms": costs, "decode_seconds": {"1009": short, "16001": long}}


def sized(nodes: int) -> Topology:
    """The likeliest tree of so many nodes."""
    return from_paths([path for _, path in likeliest_paths(CHANCES, nodes)])


def tree_case(target: Backbone, prompt: Any, cache: Any, topology: Topology) -> Callable[[], None]:
    """One verification of a tree, rolled back afterwards."""
    lengths = list(cache.lengths)
    mask = attention_mask(lengths, ancestors(topology))
    tokens = torch.arange(len(topology) + 1)[None] + 5

    def call() -> None:
        target.forward(tokens, prompt.positions(depths(topology)[None]), cache, mask)
        cache.truncate(lengths)

    return call


def decode_seconds(
    engine: Engine, args: argparse.Namespace, frames: int, clips: Sequence[int], repeats: int
) -> dict[str, list[list[float]]]:
    """Decode seconds a token by every fixed tree and by `auto`, by clip and repeat, all
    interleaved."""
    trees: dict[str, Any] = {
        f"{n} nodes": [list(path) for _, path in likeliest_paths(CHANCES, n)] for n in SIZES
    }
    trees["auto"] = "auto"
    ratio = max(0.9, 1 - KEPT / (16 * frames + 1))
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    shown = [given(engine, clip(seed), frames) for seed in clips]
    first = {"method": "specvlm", "prune_ratio": ratio, "tree": "auto"}
    engine.answer(shown[0], method=first, **options).run()  # a server has seen answers before
    spent: dict[str, list[list[float]]] = {name: [[] for _ in shown] for name in trees}
    for repeat in range(repeats):
        for number, inputs in enumerate(shown):
            for name, chosen in rotate(list(trees.items()), repeat):
                method = {"method": "specvlm", "prune_ratio": ratio, "tree": chosen}
                result = engine.answer(inputs, method=method, **options).run()
                spent[name][number].append(result.stats.tpot)
    return spent


def tell_probe(found: dict[str, Any]) -> list[str]:
    """A paragraph."""
    low, high = min(found["ratios"]), max(found["ratios"])
    memory, runs = found["peak"]["with"] / found["peak"]["without"], len(found["ratios"])
    return [
        f"## The probe at {found['visual']} visual tokens",
        "",
        f"Prefill with the probe / without: {found['ratio']:.3f} ({low:.3f} to {high:.3f}, "
        f"{runs} pairs). Peak memory "
        f"of tensors: {memory:.3f} times ({found['peak']['without'] / 1e6:.0f} MB without).",
    ]


def tell_step(found: dict[str, float]) -> list[str]:
    """A table."""
    lines = [
        "## A draft step by context",
        "",
        f"| visual tokens | all, ms | {KEPT} kept, ms |",
        "|---:|---:|---:|",
    ]
    sizes = sorted({int(name.split()[-1]) for name in found})
    return lines + [
        f"| {n} | {found[f'all {n}']:.2f} | {found[f'{KEPT} kept {n}']:.2f} |" for n in sizes
    ]


def tell_tree(found: dict[str, Any]) -> list[str]:
    """Two tables."""
    costs, decode = found["verify_ms"], found["decode_seconds"]
    sizes = sorted({int(name.split()[0]) for name in costs})
    lines = [
        "## Verification by tree size",
        "",
        "| nodes | " + " | ".join(f"{n} visual, ms" for n in sizes) + " |",
    ]
    lines.append("|---:|" + "---:|" * len(sizes))
    for nodes in SIZES:
        lines.append(
            f"| {nodes} | "
            + " | ".join(f"{costs[f'{n} visual, {nodes} nodes']:.2f}" for n in sizes)
            + " |"
        )
    lines += [
        "",
        "| tree | " + " | ".join(f"decode at {n} visual, ms a token" for n in decode) + " |",
    ]
    lines.append("|---|" + "---:|" * len(decode))
    for name in decode["1009"]:
        means = [
            1e3 * statistics.mean(map(statistics.median, column[name]))
            for column in decode.values()
        ]
        lines.append(f"| {name} | " + " | ".join(f"{value:.2f}" for value in means) + " |")
    runs = ", ".join(
        f"{len(c['auto'])} clips, {len(c['auto'][0])} repeats at {n}" for n, c in decode.items()
    )
    return [
        *lines,
        "",
        f"Means over clips of medians over repeats ({runs}); fixed trees are the likeliest of "
        f"their size.",
    ]
