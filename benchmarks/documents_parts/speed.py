"""The part `speed`: held-out pages read by the package's reader, end to end.

    python benchmarks/documents.py speed [--pages 4] [--repeats 2] [--kinds crop paragraph page]
    python benchmarks/documents.py speed --batches 1 2 4 --pages 8 --kinds paragraph

Pages of the reader's generator with words and sizes that training never shows, as PDF files born
digital. Every way reads the same files; rendering, layout, reading and drafting count. Stock
`generate` is timed on the processor's output, to which the seconds of rendering and of the
processor are added. The tokens of every lossless way are compared with stock's. With `--batches`
the pages are those of one document, which is read by batches of these sizes; what was measured
before stays in the report. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared import (
    Benchmark,
    Report,
    environment,
    environment_line,
    range_line,
    report_of,
    rotated,
    table,
)

from documents_parts.held_out import born_digital, drawn, written
from documents_parts.ledger import as_one_file
from documents_parts.timing import STOCK, parser_for, processor_seconds, read_in_every_way, reader
from draftlens.engine import Engine
from recipes.reader.evaluate import mark

BY_BLOCKS: Mapping[str, Any] = {"drafter": "text-layer", "stages": "page", "layout": "blocks"}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "lookup": {"method": "lookup", "drafter": "none"},
    "hsd, text layer": {"drafter": "text-layer", "stages": "page"},
    "hsd, text layer, regions first": {"drafter": "text-layer", "stages": "regions+page"},
    "hsd, text layer, layout by blocks": BY_BLOCKS,
    "hsd, tesseract": {"drafter": "tesseract", "stages": "page"},
}
COMPILED_WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain, compiled": {"method": "plain"},
    "hsd, text layer, compiled": {"drafter": "text-layer", "stages": "page"},
    "hsd, text layer, layout by blocks, compiled": BY_BLOCKS,
}
"""Ways of an engine whose passes are compiled, which happens before the clock starts."""

KINDS = ("crop", "paragraph", "page")

BATCHED: Mapping[str, Mapping[str, Any]] = {"plain": {"method": "plain"}, "hsd": BY_BLOCKS}
"""Ways in which a document is read by batches of pages."""


def measured(
    engine: Engine, compiled: Engine, kind: str, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Seconds, tokens a pass and accuracy of every way on the pages of one kind.

    Args:
        engine: the reader.
        compiled: the same with compiled passes.
        kind: of the pages.
        folder: receives them.
        args: of the benchmark.

    Raises:
        AssertionError: a lossless way gives other tokens than stock `generate`.
    """
    tokenizer = engine.target.processor.tokenizer
    pages = written(kind, drawn(kind, args.pages, tokenizer), born_digital, folder)
    parsers = {name: parser_for(engine, way, args.max_new_tokens) for name, way in WAYS.items()}
    parsers |= {
        name: parser_for(compiled, way, args.max_new_tokens) for name, way in COMPILED_WAYS.items()
    }
    parsers["hsd, text layer"].calibrate()
    parsers["hsd, text layer, compiled"].calibrate()
    found = [read_in_every_way(parsers, page.file, args.repeats) for page in pages]
    answers = [runs[STOCK].markdown for runs in found]
    truths = [page.markdown for page in pages]
    return {
        "accuracy": mark(kind, truths, answers).accuracy,
        "tokens": statistics.mean(len(runs[STOCK].tokens) for runs in found),
        "seconds": {way: sum(runs[way].seconds for runs in found) for way in found[0]},
        "speed": {
            way: [runs[STOCK].seconds / runs[way].seconds for runs in found] for way in found[0]
        },
        "tokens a pass": {
            way: statistics.mean(runs[way].per_pass for runs in found) for way in parsers
        },
    }


def by_batches(
    engine: Engine, kind: str, folder: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """The processor's seconds of a document by way and size of batches, interleaved; medians.

    Raises:
        AssertionError: pages have other tokens in some way.
    """
    pages = drawn(kind, args.pages, engine.target.processor.tokenizer)
    file = as_one_file(pages, folder / f"{kind}.pdf")
    parsers = {
        (way, size): parser_for(engine, {**settings, "batch": size}, args.max_new_tokens)
        for way, settings in BATCHED.items()
        for size in args.batches
    }
    parsers["hsd", args.batches[0]].calibrate()
    tokens = [page.tokens for page in next(iter(parsers.values())).parse(file)]
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in parsers}
    for repeat in range(1 + args.repeats):
        for case in rotated(list(parsers), repeat):
            began = processor_seconds()
            read = [page.tokens for page in parsers[case].parse(file)]
            seconds[case].append(processor_seconds() - began)
            assert read == tokens, f"{case} changed the tokens of a page"
    rows = []
    for (way, size), each in seconds.items():
        median = statistics.median(each[1:])
        rows.append({"kind": kind, "way": way, "batch": size, "seconds": median})
        rows[-1] |= {"pages": len(tokens), "tokens": sum(map(len, tokens))}
    return rows


def measure(args: argparse.Namespace) -> Report:
    """Every kind of pages, or documents by batches alone."""
    report = report_of(args)
    if args.batches:
        engine = reader(args.target)
        with tempfile.TemporaryDirectory() as folder:
            rows = [by_batches(engine, kind, Path(folder), args) for kind in args.kinds]
        found = {"rows": [row for each in rows for row in each], "environment": environment(args)}
        return {**report, "batches": found}
    kept = {name: report[name] for name in ("batches",) if name in report}
    engine, compiled = reader(args.target), reader(args.target)
    compiled.compile(True)
    with tempfile.TemporaryDirectory() as folder:
        kinds = {kind: measured(engine, compiled, kind, Path(folder), args) for kind in args.kinds}
    return {**kept, "pages": args.pages, "kinds": kinds, "environment": environment(args)}


def page(report: Report) -> list[str]:
    """Seconds and tokens a pass by kind and way."""
    columns = {
        "way": "{way}",
        "seconds, all pages": "{seconds:.2f}",
        "of stock, page by page": "{speed}",
        "tokens a pass": "{length:.2f}",
    }
    kinds = report.get("kinds", {})
    blocks = [f"{report['pages']} pages of each kind."] if kinds else []
    for kind, found in kinds.items():
        rows = [
            {
                "way": way,
                "seconds": seconds,
                "speed": range_line(found["speed"][way]),
                "length": found["tokens a pass"].get(way),
            }
            for way, seconds in found["seconds"].items()
        ]
        blocks += [
            f"## {kind}",
            f"The reader is right on {100 * found['accuracy']:.1f}% of the characters; "
            f"{found['tokens']:.0f} tokens a page.",
            table(rows, columns),
        ]
    if "batches" in report:
        blocks += ["## Documents by batches of pages", _batches(report["batches"]["rows"])]
        blocks.append(f"<sub>{environment_line(report['batches']['environment'])}</sub>")
    return blocks


def _batches(rows: list[dict[str, Any]]) -> str:
    first: dict[tuple[str, str], float] = {}
    cells = []
    for row in rows:
        base = first.setdefault((row["kind"], row["way"]), row["seconds"])
        cells.append({**row, "of first": base / row["seconds"]})
    columns = {
        "way": "{way}",
        "pages of": "{kind}",
        "batch": "{batch}",
        "pages": "{pages}",
        "tokens": "{tokens}",
        "seconds of the processor": "{seconds:.2f}",
        "of one page at a time": "{of first:.2f}",
    }
    return table(cells, columns)


BENCHMARK = Benchmark(
    "documents_speed",
    __doc__,
    "Held-out pages by the package's reader",
    measure,
    page,
    {
        "--repeats": 2,
        "--pages": {"type": int, "default": 4, "help": "of each kind"},
        "--kinds": {"nargs": "+", "choices": KINDS, "default": list(KINDS)},
        "--target": {"help": "folder of the reader; that of the package by default"},
        "--batches": {"nargs": "+", "type": int, "help": "pages that are read at the same time"},
        "--max-new-tokens": 400,
    },
)
