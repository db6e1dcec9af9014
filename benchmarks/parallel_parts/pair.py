"""The embedded pair with the real process: parallel decoding beside serial chains and stock.

    python benchmarks/parallel.py pair [--frames 16 8 64] [--clips 3] [--repeats 3]

Answers are interleaved and compared token by token. Target and draft have one thread each. Every
part of a call counts end to end. Figures are medians over repeats of sums over clips, with the
smallest and largest; gains are ratios within one repeat. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared import (
    PAIR,
    Benchmark,
    Report,
    assisted_answerer,
    backbones,
    caption_sample,
    engine_answerer,
    pair_of,
    range_line,
    ratios,
    rotated,
    sample_inputs,
    stock_answerer,
    table,
)

from draftlens.methods.parallelvlm.drafters import link_of

CHAINS = (3, 5, 7, 9)

FIGURES = ("e2e", "decode", "ttft", "passes", "emitted", "corrections", "draft_forwards")


def methods(frames: int) -> dict[str, dict[str, Any]]:
    """The methods to compare, by name."""
    pruned = {"method": "parallelvlm", "pruner": "uv"}
    whole = {"method": "speculative"}
    own = {**pruned, "draft": "self"}
    chosen: dict[str, dict[str, Any]] = {"plain": {"method": "plain"}}
    for length in CHAINS:
        chain = {"schedule": "serial", "num_speculative_tokens": length}
        chosen[f"uv, serial chain of {length}"] = {**pruned, **chain}
        chosen[f"unpruned, serial chain of {length}"] = {**whole, **chain}
    chosen["uv, parallel"] = pruned
    chosen["unpruned, parallel"] = {**whole, "schedule": "parallel"}
    for length in (5, 7):
        lockstep = {"schedule": "parallel", "num_speculative_tokens": length}
        chosen[f"uv, lock-step of {length}"] = {**pruned, **lockstep}
        chosen[f"unpruned, lock-step of {length}"] = {**whole, **lockstep}
    if frames >= 16:
        for length in (1, 2, 4):
            chain = {"schedule": "serial", "num_speculative_tokens": length}
            chosen[f"self, serial chain of {length}"] = {**own, **chain}
        chosen["self, parallel"] = own
    return chosen


def wait_for(backbone: Any) -> None:
    """Wait until a model's process is ready, which is not part of an answer."""
    link: Any = link_of(backbone)
    number = link.new_answer()
    while not link.is_ready:
        link.receive(number, 0.1)
    link.forget(number)


def _interleaved(
    answerers: Mapping[str, Any], prompts: Sequence[Any], args: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    sums: dict[str, list[dict[str, float]]] = {name: [] for name in answerers}
    expected: dict[int, Any] = {}
    for repeat in range(args.repeats + 1):
        for name, answer in rotated(list(answerers.items()), repeat):
            total: dict[str, float] = defaultdict(float)
            for number, inputs in enumerate(prompts):
                run = answer(inputs, {"max_new_tokens": args.max_new_tokens})
                tokens = expected.setdefault(number, run["tokens"])
                assert run["tokens"] == tokens, f"{name} changed the tokens"
                add_figures(total, run)
            if repeat:  # the first one fills caches
                sums[name].append(dict(total))
    return sums


def add_figures(total: dict[str, float], run: Mapping[str, Any]) -> None:
    """Add the figures of one answer to the sums."""
    for figure in FIGURES:
        total[figure] += run.get(figure, 0)
    for phase, seconds in run.get("phases", {}).items():
        total[f"target {phase}"] += seconds
    for kind, seconds in run.get("lanes", {}).get("draft", {}).items():
        total[f"lane {kind}"] += seconds


def gains(runs: Mapping[str, Sequence[Mapping[str, float]]], draft: str) -> dict[str, list[float]]:
    """Decoding seconds of the best serial chain of a draft over those of its other ways, by repeat.

    The best chain is the one with the smallest median, so that noise chooses none of it.
    """
    chains = [name for name in runs if name.startswith(f"{draft}, serial")]
    best = min(chains, key=lambda name: statistics.median(run["decode"] for run in runs[name]))
    others = [name for name in runs if name.startswith(f"{draft}, ") and name not in chains]
    return {
        f"{name} / {best.removeprefix(f'{draft}, ')}": ratios(
            [run["decode"] for run in runs[best]], [run["decode"] for run in runs[name]]
        )
        for name in others
    }


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """Sums over clips of every way of answering, repeat by repeat, by number of frames: once more
    after each number of frames."""
    began = time.perf_counter()
    engine = pair_of(args, calibrate=False)
    target, draft = backbones(engine)
    for backbone in (target, draft):
        wait_for(backbone)
    runs: dict[str, Any] = {}
    for frames in args.frames:
        answerers: dict[str, Any] = {"stock generate": stock_answerer(target)}
        if frames <= 64:
            answerers["stock assisted"] = assisted_answerer(target, draft, {})
        for name, method in methods(frames).items():
            answerers[name] = engine_answerer(engine, method)
        prompts = [sample_inputs(engine, caption_sample(70 + c), frames) for c in range(args.clips)]
        runs[str(frames)] = _interleaved(answerers, prompts, args)
        print(f"{frames} frames done", flush=True)
        yield {"runs": runs, "seconds": time.perf_counter() - began}


def page(report: Report) -> list[str]:
    """Ways and gains by number of frames."""
    columns = {
        "way": "{way}",
        "decode s": "{decode}",
        "end to end s": "{e2e}",
        "of plain": "{gain:.2f}",
        "first tokens ms": "{ttft:.0ms}",
        "tokens a pass": "{per pass:.2f}",
        "ms a pass": "{pass:.1ms}",
        "ms a draft step": "{step:.2ms}",
        "corrections": "{corrections:.0f}",
    }
    blocks = []
    for frames, runs in report["runs"].items():
        plain = statistics.median(run["e2e"] for run in runs["plain"])
        rows = [figures_of(name, repeats, plain) for name, repeats in runs.items()]
        of_drafts = [
            gains(runs, draft)
            for draft in ("uv", "unpruned", "self")
            if any(name.startswith(f"{draft},") for name in runs)
        ]
        over = {name: values for each in of_drafts for name, values in each.items()}
        head: dict[str, Any] = {
            "decode, gain over the best serial chain": str,
            "median (range)": lambda name, over=over: range_line(over[name]),
        }
        blocks += [f"## {frames} frames", table(rows, columns), table(over, head)]
    return blocks


def figures_of(name: str, repeats: Sequence[Mapping[str, float]], plain: float) -> dict[str, Any]:
    """Medians of one way; `plain` is the median of plain decoding, end to end."""

    def median(figure: str) -> float:
        return statistics.median(run.get(figure, 0.0) for run in repeats)

    passes, steps = median("passes"), median("draft_forwards")
    drafting = median("lane draft") or median("target draft")
    return {
        "way": name,
        "decode": range_line([run["decode"] for run in repeats]),
        "e2e": range_line([run["e2e"] for run in repeats]),
        "gain": plain / median("e2e"),
        "ttft": median("ttft"),
        "per pass": repeats[0]["emitted"] / passes if passes else None,
        "pass": median("target verify") / passes if passes else None,
        "step": drafting / steps if steps else None,
        "corrections": repeats[0]["corrections"],
    }


BENCHMARK = Benchmark(
    "parallel_pair",
    __doc__,
    "Draft and target at the same time on the embedded pair",
    measure,
    page,
    {**PAIR, "--repeats": 3, "--frames": [16, 8, 64], "--clips": 3},
)
