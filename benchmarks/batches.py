"""Our own claims on held-out captions: rows that join at any moment keep their tokens, speed at
batch 1 beside stock `generate`, assisted generation and prompt lookup, and the batch size up to
which a draft pays.

    python benchmarks/batches.py --out benchmarks/results/batches [--parts joining,one,sizes]

Times are seconds of whole answers, of `sizes` those of the processor, without the reading of clips;
all ways are interleaved within a repeat.
Every answer is compared with stock `generate`. Writes OUT.json and OUT.md after every part.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftlens_lab.bench.batches import break_even
from draftlens_lab.evaluate.answers import dialogue
from draftlens_lab.measure.tables import markdown_table
from shared import (
    SIDE,
    argument_parser,
    assisted_answerer,
    backbones,
    caption_sample,
    configure,
    engine_answerer,
    environment,
    environment_line,
    rotated,
    save,
    stock_answerer,
)

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, step
from draftlens.engine import Engine
from draftlens.inputs import Inputs

PREDICTION = """Written before the first run: no row that joins differs. At batch 1 the default is
2.5 times as fast as stock generate, 1.8 times as fast as the better assisted generation and 2 times
as fast as prompt lookup. The gain of the draft over plain decoding falls from 2.4 at one row to 1.3
at 16 rows and is above 1 up to 32, since a forward of this small model costs about the same up to
some dozens of tokens."""

FRAMES = 8
METHODS = ("plain", "speculative", "specvlm", "lookup")
GAPS = 6
"""Most rounds between two rows that join."""

JOINING = ("method", "rows that joined at random moments", "differ from stock")
ONE = ("one prompt", "of stock, median", "answers", "differ from stock")
SIZES = ("rows", "plain, s", "with a draft, s", "gain of the draft")


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/batches", repeats=3)
    parser.add_argument("--parts", default="joining,one,sizes")
    parser.add_argument("--clips", type=int, default=8, help="of part one")
    parser.add_argument("--rows", type=int, default=30, help="of part joining, for each method")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.set_defaults(max_new_tokens=80)
    args = parser.parse_args()
    configure(args.threads)
    engine = draftlens.load("embedded", device="cpu")
    parts: dict[str, Callable[[Engine, argparse.Namespace], Any]] = {
        "joining": joining,
        "one": one,
        "sizes": sizes,
    }
    file = args.out.with_suffix(".json")
    report = json.loads(file.read_text()) if file.exists() else {}
    for name in args.parts.split(","):
        report[name] = {"found": parts[name](engine, args), "environment": environment(args)}
        report["prediction"] = " ".join(PREDICTION.split())
        save(args.out, report, page(report))
    print(page(report))


def prompts(engine: Engine, seeds: Sequence[int]) -> Inputs:
    """Requests for the captions of held-out clips, as the rows of one call."""
    return engine.process([dialogue(caption_sample(seed), FRAMES, SIDE) for seed in seeds])


def joining(engine: Engine, args: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Rows that join a running batch at random moments, and how many of them differ from stock."""
    chance = random.Random(0)
    target = engine.target.backbone
    limits = [chance.randint(4, args.max_new_tokens) for _ in range(args.rows)]
    inputs = [prompts(engine, [seed]) for seed in range(args.rows)]
    stock = stock_answerer(target)
    expected = [
        stock(each, {"max_new_tokens": limit, "do_sample": False})["tokens"][0]
        for each, limit in zip(inputs, limits, strict=True)
    ]
    found = {}
    for method in METHODS:
        batch = Session(target, engine.plan(method), Clock(Stats()))
        rows = []
        for each, limit in zip(inputs, limits, strict=True):
            prepared = target.prepare(each.target, max_new_tokens=limit, do_sample=False)
            rows += batch.add(prepared, [0], each.draft or each.target)
            for _ in range(chance.randint(0, GAPS)):
                step(batch)
        while not batch.done:
            step(batch)
        differ = sum(row.tokens != own for row, own in zip(rows, expected, strict=True))
        found[method] = {"rows": len(rows), "differ": differ}
    return found


def one(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of answers to one prompt, by way, and how many answers differ from stock."""
    target, draft = backbones(engine)
    fixed = {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    ways = {
        "stock": stock_answerer(target),
        "stock assisted": assisted_answerer(target, draft, {}),
        "stock assisted, 5": assisted_answerer(target, draft, fixed),
        "stock prompt lookup": stock_answerer(
            target, prompt_lookup_num_tokens=10, suppress_tokens=sorted(target.pixel_ids)
        ),
        "plain": engine_answerer(engine, "plain"),
        "default": engine_answerer(engine, None),
    }
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    differ = dict.fromkeys(ways, 0)
    for seed in range(-1, args.clips):
        inputs = prompts(engine, [abs(seed)])
        for repeat in range(args.repeats):
            runs = {}
            for way in rotated(list(ways), repeat + seed):
                runs[way] = ways[way](inputs, options)
            if seed < 0:  # fills caches
                continue
            for way, run in runs.items():
                seconds[way].append(run["e2e"])
                differ[way] += run["tokens"] != runs["stock"]["tokens"]
    return {"seconds": seconds, "differ": differ}


def sizes(engine: Engine, args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of the processor, which other programs hardly change, of batches by number of rows
    and method; tokens are compared with each other."""
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    ways = ("plain", "speculative")
    found: dict[str, dict[str, list[float]]] = {}
    for size in args.sizes:
        inputs = prompts(engine, range(size))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(-1, args.repeats):
            answers = {}
            for way in rotated(list(ways), repeat):
                began = time.process_time()
                result = engine.answer(inputs, method=way, **options).run()
                answers[way] = result.tokens
                if repeat >= 0:
                    seconds[way].append(time.process_time() - began)
            assert answers["plain"] == answers["speculative"], size
        found[str(size)] = seconds
    return found


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Batches", ""]
    if "joining" in report:
        found = report["joining"]["found"]
        rows = [[name, str(own["rows"]), str(own["differ"])] for name, own in found.items()]
        lines += [*markdown_table(JOINING, rows), ""]
    if "one" in report:
        found = report["one"]["found"]
        stock = found["seconds"]["stock"]
        rows = []
        for way, seconds in found["seconds"].items():
            gain = statistics.median(a / b for a, b in zip(stock, seconds, strict=True))
            rows.append([way, f"{gain:.2f}", str(len(seconds)), str(found["differ"][way])])
        lines += [*markdown_table(ONE, rows), ""]
    if "sizes" in report:
        rows, gains = [], {}
        for size, seconds in report["sizes"]["found"].items():
            plain, fast = (statistics.median(seconds[way]) for way in ("plain", "speculative"))
            gains[int(size)] = plain / fast
            rows.append([size, f"{plain:.2f}", f"{fast:.2f}", f"{plain / fast:.2f}"])
        lines += [*markdown_table(SIZES, rows), "", f"Break-even: {break_even(gains)}.", ""]
    for name in ("joining", "one", "sizes"):
        if name in report:
            lines += [f"<sub>{name}: {environment_line(report[name]['environment'])}</sub>", ""]
    return "\n".join([*lines, f"Prediction. {report['prediction']}", ""])


if __name__ == "__main__":
    main()
