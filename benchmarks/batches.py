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
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftlens_lab.bench.batches import break_even
from draftlens_lab.evaluate.answers import dialogue
from shared import (
    SIDE,
    Benchmark,
    Report,
    assisted_answerer,
    backbones,
    caption_sample,
    engine_answerer,
    measured_parts,
    median_ratio,
    parts_page,
    rotated,
    stock_answerer,
    table,
)

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, step
from draftlens.engine import Engine
from draftlens.inputs import Inputs

FRAMES = 8
METHODS = ("plain", "speculative", "specvlm", "lookup", "mixed")
SIZED = ("plain", "speculative", "mixed")
"""Methods of `sizes`; `mixed` is the default of a pair."""
GAPS = 6
"""Most rounds between two rows that join."""


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
    found: dict[str, dict[str, list[float]]] = {}
    for size in args.sizes:
        inputs = prompts(engine, range(size))
        seconds: dict[str, list[float]] = {way: [] for way in SIZED}
        for repeat in range(-1, args.repeats):
            answers = {}
            for way in rotated(list(SIZED), repeat):
                began = time.process_time()
                result = engine.answer(inputs, method=way, **options).run()
                answers[way] = result.tokens
                if repeat >= 0:
                    seconds[way].append(time.process_time() - began)
            assert all(tokens == answers["plain"] for tokens in answers.values()), size
        found[str(size)] = seconds
    return found


def page_of_joining(found: Mapping[str, Any]) -> list[str]:
    """Rows that differ from stock, by method."""
    columns = {
        "method": "{method}",
        "rows that joined at random moments": "{rows}",
        "differ from stock": "{differ}",
    }
    return [table([{"method": method, **own} for method, own in found.items()], columns)]


def page_of_one(found: Mapping[str, Any]) -> list[str]:
    """Speed at batch 1, by way."""
    seconds = found["seconds"]
    columns: dict[str, Any] = {
        "one prompt": str,
        "of stock, median": lambda way: f"{median_ratio(seconds['stock'], seconds[way]):.2f}",
        "answers": lambda way: len(seconds[way]),
        "differ from stock": lambda way: found["differ"][way],
    }
    return [table(seconds, columns)]


def page_of_sizes(found: Mapping[str, Any]) -> list[str]:
    """Seconds by number of rows, and where the draft no longer pays."""
    rows = []
    for size, seconds in found.items():
        medians = {way: statistics.median(own) for way, own in seconds.items()}
        gains = {f"{way} gain": medians["plain"] / medians[way] for way in SIZED[1:]}
        rows.append({"rows": int(size), **medians, **gains})
    columns = {"rows": "{rows}", "plain, s": "{plain:.2f}"}
    for way in SIZED[1:]:
        columns |= {f"{way}, s": f"{{{way}:.2f}}", f"gain of {way}": f"{{{way} gain:.2f}}"}
    pays = {way: {row["rows"]: row[f"{way} gain"] for row in rows} for way in SIZED[1:]}
    ends = ", ".join(f"{way} {break_even(gains)}" for way, gains in pays.items())
    return [table(rows, columns), f"Break-even: {ends}."]


PARTS = {
    "joining": (joining, page_of_joining),
    "one": (one, page_of_one),
    "sizes": (sizes, page_of_sizes),
}


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each part."""
    engine = draftlens.load("embedded", device="cpu")
    return measured_parts({name: part[0] for name, part in PARTS.items()}, engine, args)


def page(report: Report) -> list[str]:
    """Every measured part with its environment."""
    return parts_page(report, {name: part[1] for name, part in PARTS.items()})


BENCHMARK = Benchmark(
    "batches",
    __doc__,
    "Batches",
    measure,
    page,
    {
        "--repeats": 3,
        "--parts": "joining,one,sizes",
        "--clips": {"type": int, "default": 8, "help": "of part one"},
        "--rows": {"type": int, "default": 30, "help": "of part joining, for each method"},
        "--sizes": [1, 4, 16, 32],
        "--max-new-tokens": 80,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
