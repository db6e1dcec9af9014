"""The part `claims`: the figures for the fifteen claims of HSD's paper.

    python benchmarks/documents.py claims [--pages 6] [--only stages sources] [--early FOLDER]

Work (tokens a pass, forwards, forwarded tokens) is exact and without noise. Seconds are those of
the processor, with rendering, layout, reading and drafting counted. Most sections are measured page
by page: the rows file keeps each page, a further run goes on where the last one ended, and more
`--pages` add to those that are there. The other sections run where `--only` names them, all of
their pages at once.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from shared import Benchmark, Report, aligned, environment, environment_line, report_of

from documents_parts import runs, work
from documents_parts.bench import Bench, Cell, Section
from documents_parts.paged import PagedSection, PageRows
from documents_parts.runs import TIMED_KINDS
from documents_parts.timing import parse_once, processor_seconds

PAGED: Mapping[str, PagedSection] = {
    **{f"times, {kind}": runs.times(kind) for kind in TIMED_KINDS},
    "origins": PagedSection(runs.measure_origins, runs.origins),
    "stages": PagedSection(runs.measure_stages, runs.stages),
    "length": PagedSection(work.measure_length, work.length),
    "quality": PagedSection(work.measure_quality, work.quality),
    "settings": PagedSection(work.measure_settings, work.settings),
}
"""In the order in which they run: the answers of what is timed serve the others."""

AT_ONCE: Mapping[str, Callable[[Bench], Section]] = {
    "sources": runs.sources,
    "draft model": runs.draft_model,
    "real pages": runs.real_pages,
    "replays": work.check_replays,
}

INTRODUCTION = """The fifteen claims of HSD, on held-out pages of the reader in the package. Every
lossless way of every page has the tokens of stock `generate`; a run in which one differs fails.
The reader is weak on long pages, so its drafts are contradicted often; the columns of a perfect
reader are simulated and say what the same drafts would give without its mistakes. Verdicts, with
their intervals, are in docs/claims.md."""


ROWS = Path("benchmarks/results/documents_claims_rows.jsonl")


def _measure_pages(bench: Bench, kept: PageRows, names: Sequence[str], pages: int) -> None:
    """Measure the sections of these names on the pages that are not among the rows yet."""
    for number, name in product(range(pages), names):
        if not kept.has(name, number):
            began = processor_seconds()
            found = PAGED[name].measure(bench, number)
            kept.add(name, number, found, processor_seconds() - began)
            print(f"{name}, page {number}: done", flush=True)


def _bench(args: argparse.Namespace, folder: Path, answers: Mapping[str, Any]) -> Bench:
    bench = Bench(
        args.target,
        args.early,
        folder,
        args.pages,
        args.repeats,
        args.max_new_tokens,
        args.real,
    )
    bench.recall(answers)
    bench.parser(drafter="none").calibrate()
    # The first answers of a process load networks, fill caches and choose kernels.
    first = bench.pages("crop")[0]
    bench.stock(first)
    for way in runs.TIMED.values():
        parse_once(bench.parser(**way), first.file)
    return bench


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 0.1 else f"{value:.2f}"
    return str(value)


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each section; those of an earlier run stay until they run again."""
    facts = environment(args)
    report: Report = {"sections": {}, "answers": {}, **report_of(args)}
    for section in report["sections"].values():
        section.setdefault("environment", report["environment"])
    report |= {"environment": facts, "pages": args.pages}
    with tempfile.TemporaryDirectory() as folder:
        bench = _bench(args, Path(folder), report["answers"])
        kept = PageRows(args.rows, bench.weights, facts["commit"])
        for name in filter(AT_ONCE.__contains__, args.only):
            report["sections"][name] = asdict(AT_ONCE[name](bench)) | {"environment": facts}
            yield report | {"answers": bench.answers()}
        _measure_pages(bench, kept, [name for name in args.only if name in PAGED], args.pages)
        for name, section in PAGED.items():
            if pages := kept.of(name):
                report["sections"][name] = asdict(section.summary(pages))
        yield report | {"minutes": kept.seconds / 60, "answers": bench.answers()}


def page(report: Report) -> list[str]:
    """The sections."""
    blocks = [INTRODUCTION]
    for name in (*PAGED, *AT_ONCE):
        if name in report["sections"]:
            section = report["sections"][name]
            cells = [[_cell(value) for value in row] for row in section["rows"]]
            found = aligned(section["columns"], cells)
            blocks += [f"## {section['title']}", found, section["note"]]
            if "environment" in section:  # of a section that ran at once, perhaps earlier
                blocks.append(f"<sub>{environment_line(section['environment'])}</sub>")
    return blocks


BENCHMARK = Benchmark(
    "documents_claims",
    __doc__,
    "The claims of HSD",
    measure,
    page,
    {
        "--pages": {"type": int, "default": 6, "help": "of each kind"},
        "--only": {"nargs": "+", "choices": (*PAGED, *AT_ONCE), "default": list(PAGED)},
        "--rows": {"type": Path, "default": ROWS, "help": "one page a line"},
        "--target": {"help": "folder of the reader; that of the package by default"},
        "--early": {"help": "folder of an earlier checkpoint, as draft model"},
        "--real": {"nargs": "+", "type": Path, "default": [], "help": "PDFs of one page"},
        "--max-new-tokens": 500,
    },
)
