"""The part `texts`: documents to Markdown without a model, beside other tools.

    python benchmarks/documents.py texts --files FOLDER [--peers PYTHON]

FOLDER holds unpacked source archives and Debian packages, in any order: of PyPI pypdf 7.1.0,
ocrmypdf 17.13.0, pikepdf 10.18.0, marker-pdf 2.0.0 and tabula-py 2.10.0, and of Debian
debian-policy, debian-faq-fr, debian-faq-de, maint-guide, developers-reference, valgrind,
gnuplot-doc, asymptote-doc and octave-doc. What is missing is left out, and said. PYTHON is an
interpreter with pymupdf4llm, markitdown[pdf], docling-parse and pdfplumber; the last two are text
layers, of which pdfplumber finds tables, too.

Each printed line of the text layer is looked for in the Markdown, letters and digits alone: one
that is not there as a whole was cut or mixed with another, or has its words in another order. Where
a long line stands directly below another one, the two follow each other in every right order of
reading. Headings, items of lists and rows of tables are compared with `documents_texts_truth.json`,
which was written by hand. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import subprocess
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pypdfium2
from draftlens_lab.measure.tables import markdown_table
from shared import Benchmark, Report

import draftlens
from documents_parts.timing import processor_seconds
from draftlens.documents.reading.blocks import lines_of
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.open import open_document
from draftlens.documents.reading.page import Piece

TRUTH = Path(__file__).parents[1] / "documents_texts_truth.json"
ITEM = 20
"""Letters of an item's beginning that are compared."""

LONG = 30
"""Letters of lines whose order is compared: shorter ones may stand in rows of tables."""

OURS = "draftlens"
WITH_HEADS = "draftlens, running heads kept"

_PEERS = """
import json, sys, time
tool, *paths = sys.argv[1:]
tables = lambda path: []
if tool == "pymupdf4llm":
    import pymupdf4llm
    read = lambda path: [page["text"] for page in pymupdf4llm.to_markdown(path, page_chunks=True)]
elif tool == "markitdown":
    from markitdown import MarkItDown
    converter = MarkItDown()
    read = lambda path: [converter.convert(path).text_content]
elif tool == "docling-parse":
    from docling_core.types.doc.page import TextCellUnit
    from docling_parse.pdf_parser import DoclingPdfParser
    def read(path):
        pages = DoclingPdfParser().load(path).iterate_pages()
        lines = [page.iterate_cells(TextCellUnit.LINE) for _, page in pages]
        return ["\\n".join(line.text for line in each) for each in lines]
else:
    import pdfplumber
    def read(path):
        with pdfplumber.open(path) as pdf:
            return [page.extract_text() for page in pdf.pages]
    def tables(path):
        with pdfplumber.open(path) as pdf:
            return [table for page in pdf.pages for table in page.extract_tables()]
for path in paths:
    began = time.process_time()
    pages = read(path)
    seconds = time.process_time() - began
    print("\\n" + json.dumps([pages, seconds, tables(path)]), flush=True)
"""
PEERS = ("pymupdf4llm", "markitdown", "docling-parse", "pdfplumber")


@dataclass(frozen=True)
class Text:
    """What a tool makes of a file.

    Args:
        pages: Markdown by pages, or as a whole.
        seconds: of the processor.
        tables: rows of tables that are not in the Markdown.
    """

    pages: list[str]
    seconds: float
    tables: str = ""


Read = Callable[[Sequence[Path]], Iterator[Text]]
"""Reads files, one after the other, in one process."""


@dataclass(frozen=True)
class Printed:
    """The text layer of a page, letters alone.

    Args:
        lines: as they are printed.
        neighbours: long lines, each with the long one directly below it, and with what is printed
            to the left of that one, as the name of a row is.
    """

    lines: list[str] = field(default_factory=list)
    neighbours: list[tuple[str, str, list[str]]] = field(default_factory=list)


@dataclass
class Score:
    """Counts of one tool over all files."""

    lines: int = 0
    broken: int = 0
    neighbours: int = 0
    apart: int = 0
    letters: int = 0
    lost: int = 0
    added: int = 0
    found: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    true: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    pages: int = 0


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def plain(markdown: str) -> str:
    """Without the tags that tools write, of which words may look like some: `<name>` is text."""
    return re.sub(r"</?(?:su[bp]|br|u|mark)/?>", "", html.unescape(markdown))


def headings(markdown: str) -> list[str]:
    prose = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    found = re.findall(r"^#+ (.*)$", plain(prose), re.MULTILINE)
    return [letters(text) for text in found]


def items(markdown: str) -> list[str]:
    """The beginnings of items, without entries of a table of contents."""
    prose = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    found = re.findall(r"^\s*(?:[-*] |\d{1,3}[.)] )(.*)$", plain(prose), re.MULTILINE)
    return [letters(text)[:ITEM] for text in found if not re.search("\u2026|\\.{4}", text)]


def rows(markdown: str) -> list[tuple[str, ...]]:
    found = re.findall(r"^ *\|(.*)\| *$", plain(markdown), re.MULTILINE)
    return [tuple(letters(cell) for cell in re.split(r"(?<!\\)\|", row)) for row in found]


FOUND: Mapping[str, Callable[[str], Sequence[Any]]] = {
    "headings": headings,
    "items": items,
    "rows": rows,
}


def ours(running_heads: bool) -> Read:
    def read(paths: Sequence[Path]) -> Iterator[Text]:
        for path in paths:
            began = processor_seconds()
            pages = [page.markdown for page in draftlens.parse(path, running_heads=running_heads)]
            yield Text(pages, processor_seconds() - began)

    return read


def peer(python: Path, tool: str) -> Read:
    def read(paths: Sequence[Path]) -> Iterator[Text]:
        command = [str(python), "-c", _PEERS, tool, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            if line.startswith("[["):
                yield _text(*json.loads(line))

    return read


def _text(pages: list[str], seconds: float, tables: list[list[list[str | None]]]) -> Text:
    rows = [[(cell or "").replace("\n", " ") for cell in row] for table in tables for row in table]
    return Text(pages, seconds, "\n".join(f"| {' | '.join(row)} |" for row in rows))


def printed_pages(path: Path) -> list[Printed]:
    document = open_document(path)
    try:
        layers = [document.page(n).text_layer() for n in range(1, document.num_pages + 1)]
    finally:
        document.close()
    return [Printed() if layer is None else _printed(layer.pieces) for layer in layers]


def _printed(pieces: Sequence[Piece]) -> Printed:
    lines = [
        (letters("".join(piece.text for piece in line)), around(piece.box for piece in line))
        for line in lines_of(pieces)
    ]
    neighbours = []
    for text, box in lines:
        below = [other for other in lines if _is_below(box, other[1])]
        if below and len(text) >= LONG:
            lower, place = min(below, key=lambda other: other[1].top)
            beside = [name for name, other in lines if _is_left(place, other)]
            neighbours += [(text, lower, beside)] * (len(lower) >= LONG)
    return Printed([text for text, _ in lines], neighbours)


def _is_below(box: Box, other: Box) -> bool:
    """Whether a line begins directly below another one."""
    gap = other.top - box.bottom
    indent = abs(other.left - box.left)
    return other.middle[1] > box.bottom and max(gap, indent) < box.height / 2


def _is_left(box: Box, other: Box) -> bool:
    """Whether a line stands on the same height and to the left."""
    return other.right <= box.left and other.top < box.middle[1] < other.bottom


def add(score: Score, name: str, path: Path, found: Text, truth: Mapping[str, Any]) -> None:
    """The counts of one file."""
    pages, printed = found.pages, printed_pages(path)
    score.seconds += found.seconds
    score.pages += len(printed)
    if len(pages) != len(printed):
        lines = [line for page in printed for line in page.lines]
        printed = [Printed(lines, [pair for page in printed for pair in page.neighbours])]
        pages = ["\n".join(pages)]
    for layer, markdown in zip(printed, pages, strict=True):
        text = letters(plain(markdown))
        wanted, got = Counter("".join(layer.lines)), Counter(text)
        score.letters += wanted.total()
        score.lost += (wanted - got).total()
        score.added += (got - wanted).total()
        whole = [line for line in layer.lines if len(line) > 1]
        score.lines += len(whole)
        score.broken += sum(line not in text for line in whole)
        for upper, lower, beside in layer.neighbours:
            if upper in text and lower in text:
                ways = [upper + between + lower for between in ("", *beside)]
                score.neighbours += 1
                score.apart += not any(way in text for way in ways)
    for kind, find in FOUND.items():
        if (wanted_ones := truth.get(kind, {}).get(name)) is None:
            continue
        true = Counter(_comparable(kind, one) for one in wanted_ones)
        claimed = Counter(find("\n".join([*pages, found.tables])))
        score.true[kind] += true.total()
        score.found[kind] += (true & claimed).total()
        score.claimed[kind] += claimed.total()


def _comparable(kind: str, text: Any) -> Any:
    if kind == "rows":
        return tuple(map(letters, text))
    return letters(text)[:ITEM] if kind == "items" else letters(text)


def documents(folder: Path, sources: Mapping[str, Any], work: Path) -> Iterator[tuple[str, Path]]:
    """Names and files of the documents that are in a folder, with the pages that are compared."""
    for name, source in sources.items():
        found = sorted(folder.rglob(source["file"]))
        if not found:
            print(f"{name}: {source['file']} is not in {folder}", flush=True)
            continue
        content = found[0].read_bytes()
        if found[0].suffix == ".gz":
            content = gzip.decompress(content)
        path = work / f"{name}.pdf"
        if pages := source.get("pages"):
            chosen = pypdfium2.PdfDocument.new()
            chosen.import_pages(pypdfium2.PdfDocument(content), [page - 1 for page in pages])
            chosen.save(path)
        else:
            path.write_bytes(content)
        yield name, path


def measure(args: argparse.Namespace) -> Iterator[Report]:
    truth = json.loads(TRUTH.read_text())
    tools: dict[str, Read] = {OURS: ours(running_heads=False), WITH_HEADS: ours(running_heads=True)}
    if args.peers:
        tools |= {tool: peer(args.peers, tool) for tool in PEERS}
    scores: dict[str, Score] = {}
    with tempfile.TemporaryDirectory() as work:
        files = dict(documents(args.files, truth["documents"], Path(work)))
        for tool, read in tools.items():
            score = scores[tool] = Score()
            found = read(list(files.values()))
            for (name, path), text in zip(files.items(), found, strict=True):
                add(score, name, path, text, truth)
                print(tool, name, score.broken, score.apart, flush=True)
            yield {
                "tools": {name: vars(each) for name, each in scores.items()},
                "documents": len(files),
            }


def page(report: Report) -> Iterator[str]:
    yield (
        "Lines that are cut or mixed, long lines that do not follow the one directly above them "
        "though both are whole, letters that are lost or there twice, and what was found of "
        "the headings, items and rows that were written down by hand; after the slash, how many "
        "were claimed. Markdown of markitdown has no headings and no items. Rows are some of each "
        "table, so that no other rows count. Seconds are of one processor, without start but with "
        "the processes in which draftlens reads each file."
    )
    yield (
        "docling-parse and pdfplumber are text layers, without paragraphs, headings and lists; "
        "rows of pdfplumber are those of `extract_tables`, whose seconds do not count. Printed "
        "lines are those of pypdfium2, which draftlens reads by. Docling itself is not here: it "
        "does not run without its weights, which are not on PyPI."
    )
    cells = []
    for tool, score in report["tools"].items():
        kinds = [
            f"{score['found'].get(kind, 0)} of {score['true'].get(kind, 0)}"
            + (f" / {score['claimed'].get(kind, 0)}" if kind != "rows" else "")
            for kind in FOUND
        ]
        cells.append(
            [
                tool,
                f"{score['broken']} of {score['lines']}",
                f"{score['apart']} of {score['neighbours']}" if "apart" in score else "",
                f"{score['lost']} / {score['added']} of {score['letters']}",
                *kinds,
                f"{score['seconds'] / score['pages']:.2f}" if score["seconds"] else "",
            ]
        )
    counts = ["broken lines", "lines out of order", "letters lost / added"]
    head = ["tool", *counts, *FOUND, "seconds a page"]
    yield "\n".join(markdown_table(head, cells))


BENCHMARK = Benchmark(
    "documents_texts",
    __doc__,
    "Documents to Markdown without a model",
    measure,
    page,
    {
        "--files": {"type": Path, "required": True, "help": "folder of unpacked archives"},
        "--peers": {"type": Path, "help": f"interpreter with {', '.join(PEERS)}"},
    },
)
