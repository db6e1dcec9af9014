"""End-to-end times by kind of prompt: plain, single views, and mixtures of views, interleaved."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from shared import (
    Answerer,
    Benchmark,
    Report,
    assisted_answerer,
    backbones,
    engine_answerer,
    grid,
    median_ratio,
    rotated,
    stock_answerer,
)

from draftlens import TABED, SpeculativeDecoding, load
from draftlens.engine import Engine
from tabed_parts.kinds import KINDS, prompts

BASE = "M"


def cases(engine: Engine, args: argparse.Namespace) -> dict[str, Answerer]:
    """Ways of answering; all give the tokens of stock `generate`."""
    target, draft = backbones(engine)
    alone = SpeculativeDecoding(num_speculative_tokens=5)
    if args.tree:
        alone = SpeculativeDecoding(tree=args.tree)
    settings = {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "constant"}
    answerers = {
        "stock": stock_answerer(target),
        "stock, assisted": assisted_answerer(target, draft, settings),
        BASE: engine_answerer(engine, alone),
    }
    ways: dict[str, dict[str, Any]] = {
        "T": {"views": ["text"]},
        "P": {"views": ["pooled"]},
        "MT": {},
        "MT, grid": {"weights": "grid"},
        "MTP": {"views": ["multimodal", "text", "pooled"]},
    }
    if args.captions:
        ways["MTC"] = {"views": ["multimodal", "text", "caption"]}
    for name, options in ways.items():
        answerers[name] = engine_answerer(engine, TABED(tree=args.tree, **options))
    return answerers


def timed(engine: Engine, kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds from the processors' input to the last token, by case and prompt.

    Raises:
        AssertionError: a case gives other tokens than stock `generate`.
    """
    answerers = cases(engine, args)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    seconds: dict[str, list[float]] = {name: [] for name in answerers}
    lengths: dict[str, list[float]] = {}
    for clip in prompts(engine, kind, args.prompts):
        reader = clip.prepare()
        by_case: dict[str, list[float]] = {name: [] for name in answerers}
        reference = None
        for number in range(1 + args.repeats):
            for name, answer in rotated(list(answerers.items()), number):
                start = time.perf_counter()
                inputs = engine.process([reader()])
                try:
                    run = answer(inputs, options)
                except (ValueError, RuntimeError, AttributeError, TypeError):
                    if name != "stock, assisted":
                        raise
                    continue  # it does not run on every kind of prompt
                if number:
                    by_case[name].append(time.perf_counter() - start)
                reference = reference or run["tokens"]
                if name != "stock, assisted":
                    assert run["tokens"] == reference, (clip.name, name)
                if not number and "mean_acceptance_length" in run:
                    lengths.setdefault(name, []).append(run["mean_acceptance_length"])
        for name, values in by_case.items():
            if values:
                seconds[name].append(statistics.median(values))
    means = {name: statistics.mean(values) for name, values in lengths.items()}
    return {"seconds": seconds, "lengths": means, "lengths by prompt": lengths}


def measure(args: argparse.Namespace) -> Report:
    """Seconds and lengths by kind."""
    engine = load(draft=args.draft, device="cpu") if args.draft else load(device="cpu")
    kinds = {kind: timed(engine, kind, args) for kind in args.kinds or KINDS}
    return {"draft": args.draft or "embedded", "kinds": kinds}


def page(report: Report) -> list[str]:
    """Speed and tokens a pass by case and kind."""
    kinds = report["kinds"]
    first = next(iter(kinds.values()))

    def speed(name: str, kind: str) -> str:
        seconds = kinds[kind]["seconds"]
        is_whole = len(seconds[name]) == len(seconds[BASE])
        return f"{median_ratio(seconds[BASE], seconds[name]):.2f}" if is_whole else ""

    return [
        f"Draft: {report['draft']}. Figures are M's seconds over a case's: above 1 the case is "
        "faster. Medians over prompts of medians over interleaved repeats; vision, prefill, "
        "captions and drafting included. All tokens equal those of stock generate.",
        "## Speed compared with M",
        grid("", first["seconds"], kinds, speed),
        "## Tokens a pass",
        grid("", first["lengths"], kinds, lambda n, kind: f"{kinds[kind]['lengths'][n]:.2f}"),
    ]


BENCHMARK = Benchmark(
    "tabed_endtoend",
    __doc__,
    "End to end, by views",
    measure,
    page,
    {
        "--repeats": 3,
        "--prompts": {"type": int, "default": 6, "help": "prompts of each kind"},
        "--kinds": {"nargs": "+", "choices": tuple(KINDS), "help": "all by default"},
        "--draft": {"help": "folder of another draft for the embedded target"},
        "--tree": {"help": "of the draft, such as eagle; a chain of 5 by default"},
        "--captions": {"action": "store_true", "help": "with the view of captions, too"},
        "--max-new-tokens": 128,
    },
)
