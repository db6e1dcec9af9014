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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

from documents_parts.held_out import born_digital, drawn, written
from documents_parts.timing import STOCK, parser_for, read_in_every_way, reader
from draftlens.engine import Engine
from recipes.reader.evaluate import mark

PREDICTION = """Written before the first run, with a reader that is right on four of five
characters. The issue's rule, AAL about (k - n) / (n + 1) for a disagreement every k tokens, says 1
to 2 tokens more a pass at k = 5 and n = 3, and with recovery behind a disagreement perhaps 3. So
`hsd` on one stage makes pages 1.5 times as fast as stock `generate`; the goal of 2.5 needs a better
reader. Lookup gains nothing, and the regions first cost more than they save at these lengths.
Written before the run with compiled passes, after a trial: plain 2.5 times as fast as stock, `hsd`
with the layout of rapid-layout 2 to 2.5, and with the layout by blocks, which takes no time, above
2.5 on every kind."""

OUTCOME = """Two pages of each kind, two repeats. By the modules, `hsd` on one stage is 1.5 to 1.6
times as fast as stock with rapid-layout and 1.8 to 2.1 with blocks, at 2.4 to 3.0 tokens a pass;
the regions first lose on short pages. Compiled, plain is 2.7 to 2.9 times as fast, and `hsd` with
blocks 3.2 to 3.6: above 2.5 on every kind, as predicted. With rapid-layout it is below plain on
short pages, since 0.3 to 0.6 seconds of layout are more than guesses save there. That was on an
Intel Xeon. On an AMD EPYC, with four pages of each kind and later libraries, stock `generate` takes
half of the time and every way gains less: `hsd` with blocks 1.3 to 1.5, compiled 1.6 to 1.8."""

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


def main() -> None:
    """Read, compare, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/documents_speed", repeats=2)
    parser.add_argument("--pages", type=int, default=4, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--target", help="folder of the reader; that of the package by default")
    parser.set_defaults(max_new_tokens=400)
    args = parser.parse_args()
    configure(args.threads)
    engine = reader(args.target)
    compiled = reader(args.target)
    compiled.compile(True)
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: measure(engine, compiled, kind, Path(folder), args) for kind in args.kinds}
    report = {
        "prediction": PREDICTION,
        "environment": environment(args),
        "pages": args.pages,
        "kinds": found,
    }
    save(args.out, report, page(report))
    print(page(report))


def measure(
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


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Held-out pages by the package's reader", "", report["prediction"], "", OUTCOME, ""]
    lines += [f"{report['pages']} pages of each kind.", ""]
    for kind, found in report["kinds"].items():
        lines += [
            f"## {kind}",
            "",
            f"The reader is right on {100 * found['accuracy']:.1f}% of the characters; "
            f"{found['tokens']:.0f} tokens a page.",
            "",
            *_table(found),
            "",
        ]
    return "\n".join([*lines, f"<sub>{environment_line(report['environment'])}</sub>", ""])


def _table(found: Mapping[str, Any]) -> list[str]:
    rows = []
    for way, spent in found["seconds"].items():
        length = found["tokens a pass"].get(way)
        rows.append(
            (
                way,
                f"{spent:.2f}",
                _spread(found["speed"][way]),
                "" if length is None else f"{length:.2f}",
            )
        )
    head = ("way", "seconds, all pages", "of stock, page by page", "tokens a pass")
    return markdown_table(head, rows)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
