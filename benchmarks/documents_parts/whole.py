"""The part `whole`: documents of several pages, as `draftlens parse` reads them.

    python benchmarks/documents.py whole [--pages 6] [--repeats 3] [--origins "born digital"]

Held-out pages of the reader's generator, in one call for all of them, so that the pipeline reads
the next page while the target answers this one. Stock `generate` answers one page after the other;
rendering and the processor count, as they do for every way. The tokens of every way are compared
with stock's. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens_lab.measure.statistics import format_quartiles, quartiles
from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, rotated, save

from documents_parts.held_out import ORIGINS, drawn, written
from documents_parts.timing import PROMPT_LOOKUP, STOCK, parser_for, reader, stock_once
from draftlens import DocumentParser
from draftlens.engine import Engine

PREDICTION = """Written before the first run, with the figures of single pages known. The layout of
all pages but the first is hidden behind the answers, so the default is as fast here as the layout
by blocks was on single pages: 1.9 times stock `generate` by the modules, 3.1 compiled. On fair
scans tesseract takes longer than a compiled answer and holds up the pages: 1.3 by the modules, 1.5
compiled, and plain decoding compiled is faster there, at 2.6."""

OUTCOME = """Four pages, two repeats: by the modules 1.50 times stock on born-digital pages, less
than predicted, and 1.41 on fair scans, a little more. Compiled, 2.8 and 2.5, below plain decoding:
guesses of this reader's answers save as much as finding and checking them costs, and the first
page waits for its layout. In an earlier run `auto` tried two stages on one of the four pages, which
made 2.5 of the 2.8. tesseract is fast enough to be hidden behind the answers."""

WAYS: Mapping[str, Mapping[str, Any]] = {"plain": {"method": "plain"}, "default": {}}
"""Settings of `draftlens.parse`."""

NAMES = ("born digital", "fair scan")


@dataclass(frozen=True)
class Read:
    """All pages, read in one way.

    Args:
        tokens: of each page.
        seconds: of all pages.
        first: seconds until the first page was there.
        notes: of the parser.
    """

    tokens: list[tuple[int, ...]]
    seconds: float
    first: float
    notes: str = ""


def main() -> None:
    """Read, compare, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/documents_whole", repeats=3)
    parser.add_argument("--pages", type=int, default=6)
    parser.add_argument("--kind", default="page", help="of the pages (documents_parts.held_out)")
    parser.add_argument("--origins", nargs="+", choices=list(ORIGINS), default=list(NAMES))
    parser.add_argument("--target", help="folder of the reader; that of the package by default")
    parser.set_defaults(max_new_tokens=400)
    args = parser.parse_args()
    configure(args.threads)
    engine = reader(args.target)
    compiled = reader(args.target)
    compiled.compile(True)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            origin: measure(engine, compiled, origin, Path(folder), args) for origin in args.origins
        }
    report = {
        "prediction": PREDICTION,
        "environment": environment(args),
        "pages": args.pages,
        "origins": found,
    }
    save(args.out, report, page(report))
    print(page(report))


def measure(
    engine: Engine, compiled: Engine, origin: str, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Seconds of every way, repeat by repeat.

    Args:
        engine: the reader.
        compiled: the same with compiled passes.
        origin: how the pages come to be files.
        folder: receives them.
        args: of the benchmark.

    Raises:
        AssertionError: a way gives other tokens than stock `generate`.
    """
    drawn_pages = drawn(args.kind, args.pages, engine.target.processor.tokenizer)
    pages = written(args.kind, drawn_pages, ORIGINS[origin], folder / origin.replace(" ", "-"))
    files = [held_out.file for held_out in pages]
    ways = {name: (engine, way) for name, way in WAYS.items()}
    ways |= {f"{name}, compiled": (compiled, way) for name, way in WAYS.items()}

    def made(name: str) -> DocumentParser:
        return parser_for(*ways[name], args.max_new_tokens)

    for name in ways:
        made(name).calibrate()
    runs: dict[str, list[Read]] = {way: [] for way in (STOCK, PROMPT_LOOKUP, *ways)}
    for repeat in range(1 + args.repeats):
        for way in rotated(list(runs), repeat):
            if way in ways:  # a parser of its own each time: it learns from its pages
                runs[way].append(_parsed(made(way), files))
            else:
                runs[way].append(_by_stock(made("plain"), files, way == PROMPT_LOOKUP))
    expected = runs[STOCK][0].tokens
    for way, reads in runs.items():
        assert way == PROMPT_LOOKUP or all(read.tokens == expected for read in reads), way
    timed = {way: reads[1:] for way, reads in runs.items()}
    return {
        "tokens": sum(map(len, expected)),
        "seconds": {way: [read.seconds for read in reads] for way, reads in timed.items()},
        "first": {way: [read.first for read in reads] for way, reads in timed.items()},
        "notes": {way: reads[-1].notes for way, reads in timed.items()},
    }


def _parsed(parser: DocumentParser, files: Sequence[Path]) -> Read:
    began = time.perf_counter()
    first = 0.0
    tokens: list[tuple[int, ...]] = []
    for parsed in parser.parse(files):
        assert parsed.error is None, parsed.error
        first = first or time.perf_counter() - began
        tokens.append(parsed.tokens)
    seconds = time.perf_counter() - began
    return Read(tokens, seconds, first, " ".join(parser.notes))


def _by_stock(parser: DocumentParser, files: Sequence[Path], looks_up: bool) -> Read:
    answers = [stock_once(parser, file, looks_up) for file in files]
    seconds = sum(answer.seconds for answer in answers)
    return Read([answer.tokens for answer in answers], seconds, answers[0].seconds)


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Whole documents by the package's reader", "", report["prediction"], ""]
    lines += [OUTCOME, ""]
    for origin, found in report["origins"].items():
        lines += [
            f"## {origin}",
            "",
            f"{report['pages']} pages, {found['tokens']} tokens.",
            "",
            *_table(found),
            "",
        ]
    lines += ["Of stock: paired by repeat, median (quartiles).", ""]
    return "\n".join([*lines, f"<sub>{environment_line(report['environment'])}</sub>", ""])


def _table(found: Mapping[str, Any]) -> list[str]:
    stock = found["seconds"][STOCK]
    rows = []
    for way, spent in found["seconds"].items():
        speed = [theirs / ours for theirs, ours in zip(stock, spent, strict=True)]
        first = found["first"][way]
        rows.append(
            (
                way,
                f"{statistics.median(spent):.2f}",
                format_quartiles(quartiles(speed)),
                f"{statistics.median(first):.2f}",
                "yes" if "takes longer" in found["notes"][way] else "",
            )
        )
    head = ("way", "seconds, all pages", "of stock", "seconds, first page", "OCR ended")
    return markdown_table(head, rows)
