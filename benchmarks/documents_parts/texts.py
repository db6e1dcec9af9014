"""The part `texts`: documents to Markdown without a model, beside other tools.

    python benchmarks/documents.py texts --files FOLDER [--peers PYTHON]

FOLDER holds unpacked source archives and Debian packages, in any order: of PyPI pypdf 7.1.0,
ocrmypdf 17.13.0, pikepdf 10.18.0, marker-pdf 2.0.0 and tabula-py 2.10.0, and of Debian
debian-policy, debian-faq-fr, debian-faq-de, maint-guide, developers-reference, valgrind,
gnuplot-doc, asymptote-doc and octave-doc. What is missing is left out, and said. PYTHON is an
interpreter with pymupdf4llm and markitdown[pdf].

Each printed line of the text layer is looked for in the Markdown, letters and digits alone: one
that is not there as a whole was cut or mixed with another. Headings, items of lists and rows of
tables are compared with `documents_texts_truth.json`, which was written by hand. Writes OUT.json
and OUT.md.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import subprocess
import tempfile
import time
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
from draftlens.documents.reading.blocks import lines_of
from draftlens.documents.reading.open import open_document

TRUTH = Path(__file__).parents[1] / "documents_texts_truth.json"
ITEM = 20
"""Letters of an item's beginning that are compared."""

OURS = "draftlens"
WITH_HEADS = "draftlens, running heads kept"

_PEERS = """
import json, sys, time
tool, path = sys.argv[1:]
if tool == "pymupdf4llm":
    import pymupdf4llm
    read = lambda: [page["text"] for page in pymupdf4llm.to_markdown(path, page_chunks=True)]
else:
    from markitdown import MarkItDown
    tool = MarkItDown()
    read = lambda: [tool.convert(path).text_content]
began = time.process_time()
pages = read()
sys.stdout.write("\\n" + json.dumps([pages, time.process_time() - began]))
"""

Read = Callable[[Path], tuple[list[str], float]]
"""The Markdown of a file by pages, or as a whole, and seconds of the processor."""


@dataclass
class Score:
    """Counts of one tool over all files."""

    lines: int = 0
    broken: int = 0
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
    def read(path: Path) -> tuple[list[str], float]:
        began = time.process_time()
        pages = [page.markdown for page in draftlens.parse(path, running_heads=running_heads)]
        return pages, time.process_time() - began

    return read


def peer(python: Path, tool: str) -> Read:
    def read(path: Path) -> tuple[list[str], float]:
        command = [str(python), "-c", _PEERS, tool, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        pages, seconds = json.loads(done.stdout.splitlines()[-1])
        return pages, seconds

    return read


def printed_lines(path: Path) -> list[list[str]]:
    """The letters of the printed lines of each page."""
    document = open_document(path)
    try:
        layers = [document.page(n).text_layer() for n in range(1, document.num_pages + 1)]
    finally:
        document.close()
    return [
        [letters("".join(piece.text for piece in line)) for line in lines_of(layer.pieces)]
        if layer is not None
        else []
        for layer in layers
    ]


def add(score: Score, name: str, path: Path, read: Read, truth: Mapping[str, Any]) -> None:
    """The counts of one file."""
    pages, seconds = read(path)
    printed = printed_lines(path)
    score.seconds += seconds
    score.pages += len(printed)
    if len(pages) != len(printed):
        printed = [[line for lines in printed for line in lines]]
        pages = ["\n".join(pages)]
    for lines, markdown in zip(printed, pages, strict=True):
        text = letters(plain(markdown))
        wanted, got = Counter("".join(lines)), Counter(text)
        score.letters += wanted.total()
        score.lost += (wanted - got).total()
        score.added += (got - wanted).total()
        whole = [line for line in lines if len(line) > 1]
        score.lines += len(whole)
        score.broken += sum(line not in text for line in whole)
    for kind, find in FOUND.items():
        if (wanted_ones := truth.get(kind, {}).get(name)) is None:
            continue
        true = Counter(_comparable(kind, one) for one in wanted_ones)
        claimed = Counter(find("\n".join(pages)))
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
        tools |= {tool: peer(args.peers, tool) for tool in ("pymupdf4llm", "markitdown")}
    scores = {tool: Score() for tool in tools}
    with tempfile.TemporaryDirectory() as work:
        for name, path in documents(args.files, truth["documents"], Path(work)):
            for tool, read in tools.items():
                add(scores[tool], name, path, read, truth)
            print(name, {tool: score.broken for tool, score in scores.items()}, flush=True)
    yield {
        "tools": {tool: vars(score) for tool, score in scores.items()},
        "documents": len(truth["documents"]),
    }


def page(report: Report) -> Iterator[str]:
    yield (
        "Lines that are cut or mixed, letters that are lost or there twice, and what was found of "
        "the headings, items and rows that were written down by hand; after the slash, how many "
        "were claimed. Markdown of markitdown has no headings and no items. Rows are some of each "
        "table, so that no other rows count. Seconds are of one processor, without start."
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
                f"{score['lost']} / {score['added']} of {score['letters']}",
                *kinds,
                f"{score['seconds'] / score['pages']:.2f}",
            ]
        )
    head = ["tool", "broken lines", "letters lost / added", *FOUND, "seconds a page"]
    yield "\n".join(markdown_table(head, cells))


BENCHMARK = Benchmark(
    "documents_texts",
    __doc__,
    "Documents to Markdown without a model",
    measure,
    page,
    {
        "--files": {"type": Path, "required": True, "help": "folder of unpacked archives"},
        "--peers": {"type": Path, "help": "interpreter with pymupdf4llm and markitdown"},
    },
)
