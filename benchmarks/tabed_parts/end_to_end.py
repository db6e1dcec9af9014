"""End-to-end times by kind of prompt: plain, single views, and mixtures of views, interleaved."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import (
    Answerer,
    argument_parser,
    assisted_answerer,
    backbones,
    configure,
    engine_answerer,
    environment,
    environment_line,
    rotated,
    save,
    stock_answerer,
)

from draftlens import TABED, SpeculativeDecoding, load
from draftlens.engine import Engine
from tabed_parts.kinds import KINDS, prompts

PREDICTION = """\
Written before the first run. With the embedded draft, `tabed` is 0 to 3% slower end to end than M
alone on every kind where M is best, since T rests after eight tokens, and as fast on text. With the
near-sighted draft it is faster than M by 20% or more on five pictures and on 64 frames. A captioner
that runs in series costs more than it brings on answers of 60 tokens.

The first run found 0.81 of M's speed on pictures and 0.92 on 64 frames: the second view is read,
forwarded for eight tokens and moved out of the way, which costs a short answer more than 3%."""

BASE = "M"


def main() -> None:
    """Time, check the tokens, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(draft=args.draft, device="cpu") if args.draft else load(device="cpu")
    report: dict[str, Any] = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "draft": args.draft or "embedded",
        "kinds": {kind: measure(engine, kind, args) for kind in args.kinds or KINDS},
    }
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/tabed_endtoend", repeats=3)
    parser.add_argument("--prompts", type=int, default=6, help="prompts of each kind")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), help="all by default")
    parser.add_argument("--draft", help="folder of another draft for the embedded target")
    parser.add_argument("--tree", help="of the draft, such as eagle; a chain of 5 by default")
    parser.add_argument("--captions", action="store_true", help="with the view of captions, too")
    parser.set_defaults(max_new_tokens=128)
    return parser.parse_args()


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


def measure(engine: Engine, kind: str, args: argparse.Namespace) -> dict[str, Any]:
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
                if "mean_acceptance_length" in run:
                    lengths.setdefault(name, []).append(run["mean_acceptance_length"])
        for name, values in by_case.items():
            if values:
                seconds[name].append(statistics.median(values))
    return {"seconds": seconds, "lengths": {k: statistics.mean(v) for k, v in lengths.items()}}


def ratios(kind: Mapping[str, Any], name: str) -> list[float]:
    """Seconds of M over those of a case, by prompt: above 1 the case is faster."""
    values = kind["seconds"][name]
    if len(values) < len(kind["seconds"][BASE]):
        return []
    return [base / value for base, value in zip(kind["seconds"][BASE], values, strict=True)]


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    kinds = report["kinds"]
    names = list(next(iter(kinds.values()))["seconds"])
    rows = []
    for name in names:
        row = [name]
        for kind in kinds.values():
            values = ratios(kind, name)
            row.append(f"{statistics.median(values):.2f}" if values else "")
        rows.append(row)
    lengths = [
        [name, *[f"{kind['lengths'][name]:.2f}" for kind in kinds.values()]]
        for name in next(iter(kinds.values()))["lengths"]
    ]
    return "\n".join(
        [
            "# End to end, by views",
            "",
            environment_line(report["environment"]),
            "",
            f"Draft: {report['draft']}. Figures are M's seconds over a case's: above 1 the case is "
            "faster. Medians over prompts of medians over interleaved repeats; vision, prefill, "
            "captions and drafting included. All tokens equal those of stock generate.",
            "",
            "## Prediction",
            "",
            report["prediction"],
            "",
            "## Speed compared with M",
            "",
            *markdown_table(["", *kinds], rows),
            "",
            "## Tokens a pass",
            "",
            *markdown_table(["", *kinds], lengths),
            "",
        ]
    )
