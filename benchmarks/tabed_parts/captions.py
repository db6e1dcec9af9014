"""Captions after the first token: what they delay (Table 4)."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.plugins.captions import _CAPTIONS
from shared import argument_parser, configure, environment, environment_line, rotated, save

from draftlens import TABED, load
from draftlens.engine import Engine
from tabed_parts.kinds import prompts

KINDS = ("picture", "two pictures", "five pictures", "64 frames")

WAYS: dict[str, Any] = {
    "plain": "plain",
    "captions": TABED(views=["multimodal", "text", "caption"]),
}


NAMES = ("first token", "wait for captions", "end to end")


def main() -> None:
    """Time, check the tokens, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/tabed_captions", repeats=3)
    parser.add_argument("--prompts", type=int, default=6, help="prompts of each kind")
    parser.set_defaults(max_new_tokens=32)
    args = parser.parse_args()
    configure(args.threads)
    engine = load(device="cpu")
    report = {
        "environment": environment(args),
        "kinds": {kind: measure(engine, kind, args) for kind in KINDS},
    }
    save(args.out, report, page(report))
    print(page(report))


def measure(engine: Engine, kind: str, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
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


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    rows = [
        [kind, way, *[f"{1000 * statistics.median(times[name]):.0f}" for name in NAMES]]
        for kind, ways in report["kinds"].items()
        for way, times in ways.items()
    ]
    header = ["prompts", "", "first token, ms", "wait for captions, ms", "end to end, ms"]
    return "\n".join(
        [
            "# Captions of the draft, after the first token",
            "",
            environment_line(report["environment"]),
            "",
            "Embedded pair; views M, T and C; captions of at most 32 tokens by the draft. Medians "
            "over prompts and interleaved repeats. All tokens equal those of plain decoding.",
            "",
            *markdown_table(header, rows),
            "",
        ]
    )
