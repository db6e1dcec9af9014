"""SpecVLM on the embedded pair: what pruning costs in acceptance, what the probe costs, and what it all buys.

    python benchmarks/specvlm.py --out benchmarks/results/specvlm [--parts acceptance,probe,step,tree,long]

Clips are held-out ones of the world. Acceptance is counted by the engine itself (tokens, not times). Times are
medians of interleaved repeats. Every answer is compared with stock `generate`. Writes OUT.json and OUT.md part by
part, so an interrupted run keeps what it measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from engine import assisted, environment, forward_case, rotate

import draftlens
from draftlens.api import Engine, Inputs
from draftlens.attention import Probe
from draftlens.compare import run_stock
from draftlens.models.backbone import Backbone
from draftlens.ops.tree import ancestors, attention_mask, depths, from_paths
from draftlens.ops.tree_search import likeliest_paths
from draftlens.train.evaluate.asking import conversation
from draftlens.train.world import HELD_OUT, Turn, sample_scene, told_caption
from draftlens.train.world.samples import Sample

PREDICTION = """Written before the first run. The draft looks up facts by place and frame, and the target's text
attends to few tokens, so at r = 0.9 specvlm keeps 90% of the unpruned acceptance and random about 85%; the margin
grows with r up to 0.95. Stage I alone is as good as both stages, since the world's backgrounds say little. Frame
dropping and windows lose most. The probe costs about 2% of a prefill at 8,000 visual tokens. The draft's step is
flat from 1,000 to 16,000 tokens when 500 are kept. End to end at 16,000 visual tokens prefill dominates: 1.1x."""

SIDE = 64
PROMPT = "Describe the video."
RATIOS = (0.0, 0.5, 0.75, 0.9, 0.95, 1.0)
PRUNERS = ("specvlm", "attention", "uniform", "grid", "random", "frames", "fastvid", "dycoke")
TREE_SIZES = (1, 6, 13, 26, 51)
CHANCES = [[0.8, 0.08, 0.04, 0.02]] * 8  # a typical pair's, to shape trees of given sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/specvlm"))
    parser.add_argument("--parts", default="acceptance,probe,step,tree,long")
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=320)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    engine = draftlens.load("embedded", device="cpu")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    file = args.out.with_suffix(".json")
    report = json.loads(file.read_text()) if file.exists() else {}
    report |= {"environment": environment(args), "prediction": " ".join(PREDICTION.split())}
    parts = {"acceptance": acceptance, "probe": probe_cost, "step": step_cost, "tree": tree_cost, "long": long_clip}
    for name in args.parts.split(","):
        report[name] = parts[name](engine, args)
        file.write_text(json.dumps(report, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


def clip(engine: Engine, seed: int, frames: int) -> Inputs:
    """A held-out clip as the processors would hand it over."""
    shown = sample_scene(HELD_OUT + seed)
    asked = Sample("clip", (shown,), (Turn(PROMPT, told_caption(shown), "caption"),))
    return engine.process([conversation(asked, frames, SIDE)])


def acceptance(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Mean acceptance length by pruner and ratio (figures 6, 7 and 8), over the same clips."""
    cases: dict[str, dict[str, Any]] = {}
    for ratio in RATIOS:
        for pruner in PRUNERS if 0 < ratio < 1 else ("specvlm",):
            cases[f"{pruner} {ratio}"] = {"pruner": pruner, "prune_ratio": ratio}
    for window in ("front", "middle", "end"):
        cases[f"window {window} 0.9"] = {"pruner": "window", "window": window, "prune_ratio": 0.9}
    for mass in (0.2, 0.6, 0.8):
        cases[f"specvlm mass {mass} 0.9"] = {"attention_mass": mass, "prune_ratio": 0.9}
    for seed in (1, 2):
        cases |= {f"random seed {seed} {r}": {"pruner": "random", "seed": seed, "prune_ratio": r} for r in RATIOS[1:-1]}
    cases["specvlm compact 0.9"] = {"positions": "compact", "prune_ratio": 0.9}
    cases["random compact 0.9"] = {"pruner": "random", "positions": "compact", "prune_ratio": 0.9}
    for kv in ("prefill", "gather", "sparse"):
        cases[f"self {kv} 0.9"] = {"draft": "self", "kv": kv, "prune_ratio": 0.9}
    cases["self random 0.9"] = {"draft": "self", "pruner": "random", "prune_ratio": 0.9}
    table: dict[str, list[float]] = {}
    identical = True
    for seed in range(args.clips):
        inputs = clip(engine, seed, args.frames)
        options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
        reference = run_stock(engine.target.backbone, inputs.target, **options).tokens
        for shape, tree in (("tree", "eagle"), ("chain", None)):
            for name, settings in cases.items():
                if shape == "chain" and not name.startswith(("specvlm", "random 0", "uniform")):
                    continue
                method = {"method": "specvlm", "tree": tree, **settings}
                result = engine.answer(inputs, method=method, **options).run()
                identical &= result.tokens == reference
                table.setdefault(f"{name} {shape}", []).append(result.stats.mean_acceptance_length)
    return {"identical": identical, "clips": args.clips, "frames": args.frames, "mal": table}


def probe_cost(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Time and peak memory of the target's prefill at 8,000 visual tokens, with the probe and without."""
    target = engine.target.backbone
    prompt = target.encode(target.prepare(clip(engine, 0, 500).target, max_new_tokens=1))

    def prefill(probe: Probe | None) -> float:
        cache = target.new_cache(prompt, 1)
        start = time.perf_counter()
        target.prefill(prompt, cache, probe)
        return time.perf_counter() - start

    times: dict[str, list[float]] = {"without": [], "with": []}
    prefill(Probe(prompt.visual, prompt.lengths))
    for repeat in range(args.repeats):
        for name in rotate(["without", "with"], repeat):
            probe = Probe(prompt.visual, prompt.lengths) if name == "with" else None
            times[name].append(prefill(probe))
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    peaks = {
        name: peak_bytes(lambda p=probe: prefill(p))
        for name, probe in (  # type: ignore[misc]
            ("without", None),
            ("with", Probe(prompt.visual, prompt.lengths)),
        )
    }
    visual = int(prompt.visual.sum())
    return {"visual": visual, "times": times, "ratio": statistics.median(ratios), "ratios": ratios, "peak": peaks}


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes that tensors held at once during a call, beyond those held before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    held = peak = 0
    for event in run.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def step_cost(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a draft step by visual tokens of the prompt, all of them and 500 kept (figure 2a's axes)."""
    draft = engine.draft.backbone  # type: ignore[union-attr]
    cases: dict[str, Callable[[], None]] = {}
    for frames in (64, 125, 250, 500, 1000):
        given = clip(engine, 0, frames)
        whole = draft.encode(draft.prepare(given.draft or given.target, max_new_tokens=1))
        visual = whole.visual[0].nonzero()[:, 0]
        pick = visual[torch.linspace(0, len(visual) - 1, 500).long().unique()]
        stays = ~whole.visual[0]
        stays[pick] = True
        from draftlens.models.gather import gather

        for name, prompt in (("all", whole), ("500 kept", gather(whole, [stays.nonzero()[:, 0]]))):
            cache = draft.new_cache(prompt, 40)
            draft.prefill(prompt, cache)
            cases[f"{name} {len(visual)}"] = forward_case(draft, prompt, cache, 1)
    return {name: statistics.median(times) for name, times in timed(cases, 12 * args.repeats).items()}


def timed(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each case, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 2):
        for name, case in rotate(list(cases.items()), number):
            start = time.perf_counter()
            case()
            if number > 1:  # the first two warm caches up
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def sized_tree(nodes: int) -> Any:
    """The likeliest tree of so many nodes."""
    return from_paths([path for _, path in likeliest_paths(CHANCES, nodes)])


def tree_cost(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a verification by tree size and context; and what each fixed tree and the automatic one reach."""
    target = engine.target.backbone
    cases: dict[str, Callable[[], None]] = {}
    for frames in (63, 1000):
        prompt = target.encode(target.prepare(clip(engine, 0, frames).target, max_new_tokens=1))
        cache = target.new_cache(prompt, 60)
        target.prefill(prompt, cache)
        for nodes in TREE_SIZES:
            cases[f"{int(prompt.visual.sum())} visual, {nodes} nodes"] = tree_case(target, prompt, cache, nodes)
    costs = {name: statistics.median(times) for name, times in timed(cases, 4 * args.repeats).items()}
    return {"verify_ms": costs, "decode_seconds": dict(fixed_and_auto(engine, args))}


def tree_case(target: Backbone, prompt: Any, cache: Any, nodes: int) -> Callable[[], None]:
    """One verification of a tree, rolled back afterwards."""
    topology = sized_tree(nodes)
    lengths = list(cache.lengths)
    mask = attention_mask(lengths, ancestors(topology))
    tokens = torch.arange(nodes + 1)[None] + 5

    def call() -> None:
        target.forward(tokens, prompt.positions(depths(topology)[None]), cache, mask)
        cache.truncate(lengths)

    return call


def fixed_and_auto(engine: Engine, args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Decode seconds a token of every fixed tree and of `auto`, at the short context, clips and repeats interleaved."""
    trees = {f"{n} nodes": [list(path) for _, path in likeliest_paths(CHANCES, n)] for n in TREE_SIZES}
    methods: dict[str, Any] = {name: {"tree": tree} for name, tree in trees.items()} | {"auto": {"tree": "auto"}}
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    clips = [clip(engine, seed, 63) for seed in range(3)]
    engine.answer(clips[0], method={"method": "specvlm", "tree": "auto"}, **options).run()  # has seen one answer
    spent: dict[str, list[float]] = {name: [] for name in methods}
    for repeat in range(args.repeats):
        for inputs in clips:
            for name, settings in rotate(list(methods.items()), repeat):
                stats = engine.answer(inputs, method={"method": "specvlm", **settings}, **options).run().stats
                spent[name].append(stats.decode / max(1, stats.emitted - 1))
    yield from spent.items()


def long_clip(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """End to end and decode-only at 16,000 visual tokens, beside stock generate and stock assisted generation."""
    inputs = clip(engine, 0, 1000)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    target, draft = engine.target.backbone, engine.draft.backbone.model  # type: ignore[union-attr]

    def stock(**extra: Any) -> Callable[..., dict[str, Any]]:
        def call(given: Inputs, chosen: dict[str, Any]) -> dict[str, Any]:
            run = run_stock(target, given.target, **chosen, **extra)
            return {"tokens": run.tokens, "e2e": run.e2e, "decode": run.decode}

        return call

    def ours(method: Any) -> Callable[..., dict[str, Any]]:
        def call(given: Inputs, chosen: dict[str, Any]) -> dict[str, Any]:
            result = engine.answer(given, method=method, **chosen).run()
            return {"tokens": result.tokens, **result.stats.to_dict()}

        return call

    table = {
        "hf-generate": stock(),
        "hf-assisted": assisted(stock, draft, {}),
        "plain": ours("plain"),
        "chain, unpruned": ours({"num_speculative_tokens": 5}),
        "specvlm": ours({"method": "specvlm", "prune_ratio": 0.97}),
        "specvlm, auto tree": ours({"method": "specvlm", "prune_ratio": 0.97, "tree": "auto"}),
        "specvlm, chain": ours({"method": "specvlm", "prune_ratio": 0.97, "tree": None}),
    }
    found: dict[str, Any] = {name: [] for name in table}
    for repeat in range(max(1, args.repeats // 2)):
        for name, call in rotate(list(table.items()), repeat):
            try:
                found[name].append(call(inputs, options))
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
                del table[name]
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report for people: every part that was measured."""
    writers = {"acceptance": tell_acceptance, "probe": tell_probe, "step": tell_steps, "tree": tell_trees}
    lines = ["# SpecVLM on the embedded pair", ""]
    for name, write in {**writers, "long": tell_long}.items():
        if name in report:
            lines += [*write(report[name]), ""]
    lines += ["Environment: " + ", ".join(f"{k} {v}" for k, v in report["environment"].items()) + ".", ""]
    return "\n".join([*lines, "Prediction. " + report["prediction"], ""])


def tell_acceptance(found: dict[str, Any]) -> list[str]:
    means = {name: statistics.mean(values) for name, values in found["mal"].items()}
    lines = [f"## Mean acceptance length ({found['clips']} held-out clips of {found['frames']} frames)", ""]
    same = "yes" if found["identical"] else "NO"
    lines += [f"All answers identical to stock generate: {same}. Draft tree: EAGLE's, 25 nodes.", ""]
    lines += ["| pruner | " + " | ".join(f"r = {r}" for r in RATIOS) + " |", "|---|" + "---:|" * len(RATIOS)]
    for pruner in PRUNERS:
        row = [means.get(f"{pruner} {r} tree", means[f"specvlm {r} tree"] if r in (0.0, 1.0) else None) for r in RATIOS]
        lines.append(f"| {pruner} | " + " | ".join("" if v is None else f"{v:.2f}" for v in row) + " |")
    lines += ["", "| variant | τ |", "|---|---:|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in means.items() if not is_plain(name)]
    return lines


def is_plain(name: str) -> bool:
    """Whether a case stands in the table of pruners by ratio."""
    first, *rest = name.split()
    return first in PRUNERS and len(rest) == 2 and rest[1] == "tree"


def tell_probe(found: dict[str, Any]) -> list[str]:
    low, high = min(found["ratios"]), max(found["ratios"])
    memory = found["peak"]["with"] / found["peak"]["without"]
    return [
        f"## The probe at {found['visual']} visual tokens",
        "",
        f"Prefill with the probe / without: {found['ratio']:.3f} ({low:.3f} to {high:.3f}). Peak memory of tensors: "
        f"{memory:.3f} times ({found['peak']['without'] / 1e6:.0f} MB without).",
    ]


def tell_steps(found: dict[str, float]) -> list[str]:
    lines = ["## A draft step by context", "", "| visual tokens | all, ms | 500 kept, ms |", "|---:|---:|---:|"]
    sizes = sorted({int(name.split()[-1]) for name in found})
    return lines + [f"| {n} | {found[f'all {n}']:.2f} | {found[f'500 kept {n}']:.2f} |" for n in sizes]


def tell_trees(found: dict[str, Any]) -> list[str]:
    costs = found["verify_ms"]
    sizes = sorted({int(name.split()[0]) for name in costs})
    lines = ["## Verification by tree size", "", "| nodes | " + " | ".join(f"{n} visual, ms" for n in sizes) + " |"]
    lines.append("|---:|" + "---:|" * len(sizes))
    for nodes in TREE_SIZES:
        lines.append(f"| {nodes} | " + " | ".join(f"{costs[f'{n} visual, {nodes} nodes']:.2f}" for n in sizes) + " |")
    lines += ["", "| tree | decode, ms a token |", "|---|---:|"]
    return lines + [f"| {n} | {1e3 * statistics.median(v):.2f} |" for n, v in found["decode_seconds"].items()]


def tell_long(found: dict[str, Any]) -> list[str]:
    lines = ["## 16,000 visual tokens", "", "| | end to end, s | speedup e2e | decode, s | speedup decode | τ | same |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    stock = found["hf-generate"]
    for name, runs in found.items():
        if isinstance(runs, str):
            lines.append(f"| {name} | failed: {runs} | | | | | |")
            continue
        spent = {key: statistics.median(run[key] for run in runs) for key in ("e2e", "decode")}
        gains = {k: statistics.median(s[k] / r[k] for s, r in zip(stock, runs, strict=True)) for k in spent}
        tau = f"{runs[0]['mean_acceptance_length']:.2f}" if "mean_acceptance_length" in runs[0] else ""
        same = "yes" if all(r["tokens"] == s["tokens"] for s, r in zip(stock, runs, strict=True)) else "NO"
        times = f"{spent['e2e']:.2f} | {gains['e2e']:.2f} | {spent['decode']:.2f} | {gains['decode']:.2f}"
        lines.append(f"| {name} | {times} | {tau} | {same} |")
    return lines


if __name__ == "__main__":
    main()
