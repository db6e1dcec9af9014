"""The part `speed`: held-out pages read by the package's reader, end to end.

    python benchmarks/documents.py speed [--pages 4] [--repeats 2] [--kinds crop paragraph page]

Pages of the reader's generator with words and sizes that training never shows, as PDF files born
digital. Every way reads the same files; rendering, layout, reading and drafting count. Stock
`generate` is timed on the processor's output, to which the seconds of rendering and of the
processor are added. The tokens of every lossless way are compared with stock's. Writes OUT.json
and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared import Benchmark, Report, range_line, table

from documents_parts.held_out import born_digital, drawn, written
from documents_parts.timing import STOCK, parser_for, read_in_every_way, reader
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


def measure(args: argparse.Namespace) -> Report:
    """Every kind of pages."""
    engine, compiled = reader(args.target), reader(args.target)
    compiled.compile(True)
    with tempfile.TemporaryDirectory() as folder:
        kinds = {kind: measured(engine, compiled, kind, Path(folder), args) for kind in args.kinds}
    return {"pages": args.pages, "kinds": kinds}


def page(report: Report) -> list[str]:
    """Seconds and tokens a pass by kind and way."""
    columns = {
        "way": "{way}",
        "seconds, all pages": "{seconds:.2f}",
        "of stock, page by page": "{speed}",
        "tokens a pass": "{length:.2f}",
    }
    blocks = [f"{report['pages']} pages of each kind."]
    for kind, found in report["kinds"].items():
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
    return blocks


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
        "--max-new-tokens": 400,
    },
)
