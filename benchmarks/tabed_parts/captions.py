"""Captions after the first token: what they delay (Table 4)."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from draftlens_lab.plugins.captions import _CAPTIONS
from shared import PAIR, Benchmark, Report, pair_of, rotated, table

from draftlens import TABED
from draftlens.engine import Engine
from tabed_parts.kinds import prompts

KINDS = ("picture", "two pictures", "five pictures", "64 frames")

WAYS: dict[str, Any] = {
    "plain": "plain",
    "captions": TABED(views=["multimodal", "text", "caption"]),
}


NAMES = ("first token", "wait for captions", "end to end")


def timed(engine: Engine, kind: str, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Seconds of all runs by way: time to the first token, waiting for captions after it, and the
    whole answer.

    Raises:
        AssertionError: a way gives other tokens than plain decoding.
    """
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for clip in prompts(engine, kind, args.prompts):
        reference: Any = None
        for number in range(1 + args.repeats):
            for way, method in rotated(list(WAYS.items()), number):
                _CAPTIONS.clear()  # else the picture would not be described again
                inputs = engine.process([clip.prepare()()])
                options = {"max_new_tokens": args.max_new_tokens}
                result = engine.answer(inputs, method=method, **options).run()
                reference = reference or result.tokens
                assert result.tokens == reference, (clip.name, way)
                if number:
                    stats = result.stats
                    waited = stats.phases.get("caption", 0.0)
                    found[way].append((stats.ttft, waited, stats.e2e))
    return {
        way: dict(zip(NAMES, map(list, zip(*times, strict=True)), strict=True))
        for way, times in found.items()
    }


def measure(args: argparse.Namespace) -> Report:
    """Seconds by kind and way."""
    engine = pair_of(args)
    return {"kinds": {kind: timed(engine, kind, args) for kind in KINDS}}


def page(report: Report) -> list[str]:
    """Medians by kind and way."""
    rows = [
        {
            "kind": kind,
            "way": way,
            **{name: statistics.median(times[name]) for name in NAMES},
        }
        for kind, ways in report["kinds"].items()
        for way, times in ways.items()
    ]
    figures = {f"{name}, ms": f"{{{name}:.0ms}}" for name in NAMES}
    return [
        "Embedded pair; views M, T and C; captions of at most 32 tokens by the draft. Medians "
        "over prompts and interleaved repeats. All tokens equal those of plain decoding.",
        table(rows, {"prompts": "{kind}", "": "{way}", **figures}),
    ]


BENCHMARK = Benchmark(
    "tabed_captions",
    __doc__,
    "Captions of the draft, after the first token",
    measure,
    page,
    {
        **PAIR,
        "--repeats": 3,
        "--prompts": {"type": int, "default": 6, "help": "prompts of each kind"},
        "--max-new-tokens": 32,
    },
)
