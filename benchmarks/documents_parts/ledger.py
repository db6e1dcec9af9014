"""Documents of several pages with repeated heads and a table that runs over all of them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pypdfium2

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from draftlens.documents.reading.formats.notation import HTML_TABLES
from recipes.reader.blocks import Column, Composer, Style, random_style
from recipes.reader.evaluate import HELD_OUT
from recipes.reader.page import FAMILIES, Face, Page, Writer
from recipes.reader.words import Wording

WIDTH, HEIGHT = 384, 400
MARGIN = 24.0
COLUMNS = 4
ROWS = 8
ITEMS = 6
"""Different names in the first column, of which each row has one."""


@dataclass(frozen=True)
class Heads:
    """What is the same on all pages.

    Args:
        head: the running head, which a page number follows.
        names: the head of the table.
        items: the first cells of rows.
    """

    head: str
    names: tuple[str, ...]
    items: tuple[str, ...]


def repeated_pages(count: int, seed: int, says_heads: bool) -> list[Page]:
    """The pages of one document: a running head, a part of the table below its repeated head, and
    a paragraph.

    Args:
        count: number of pages.
        seed: of the document.
        says_heads: whether the Markdown holds the running heads.
    """
    rng = np.random.default_rng([seed, 21])
    style = random_style(rng, HELD_OUT)
    wording = Wording(rng, HELD_OUT, 0.4)
    heads = Heads(
        " ".join(wording.words(3))[:24],
        tuple(wording.word().capitalize()[:8] for _ in range(COLUMNS)),
        tuple(wording.word().capitalize()[:8] for _ in range(ITEMS)),
    )
    return [_page(number, heads, style, wording, says_heads) for number in range(1, count + 1)]


def _page(number: int, heads: Heads, style: Style, wording: Wording, says_heads: bool) -> Page:
    writer = Writer(WIDTH, HEIGHT)
    composer = Composer(writer, wording, style)
    _write_head(writer, style, f"{heads.head} {number}", says_heads)
    bottom = _write_table(writer, heads, style, wording)
    composer.block(
        "paragraph", Column(MARGIN, bottom, WIDTH - MARGIN, HEIGHT - MARGIN), bottom + 16
    )
    return writer.page()


def _write_head(writer: Writer, style: Style, text: str, says: bool) -> None:
    face = Face(FAMILIES[style.family][2], 14.0)
    write = writer.say if says else writer.stamp
    write(text, MARGIN, MARGIN + 8, face)
    if says:
        writer.markup("\n\n")


def _write_table(writer: Writer, heads: Heads, style: Style, wording: Wording) -> float:
    """The table's part of one page; returns its bottom."""
    top = MARGIN + 30
    height = style.leading * style.size + 4
    width = (WIDTH - 2 * MARGIN) / COLUMNS
    for row in range(ROWS + 1):
        face = style.bold(style.size) if row == 0 else style.body
        baseline = top + row * height + 0.95 * style.size + 2
        item = str(wording.rng.choice(heads.items))
        cells = heads.names if row == 0 else (item, *_numbers(wording, COLUMNS - 1))
        writer.markup("|")
        for index, text in enumerate(cells):
            writer.markup(" ")
            writer.say(text, MARGIN + index * width + 4, baseline, face)
            writer.markup(" |")
        if row == 0:
            writer.markup("\n" + "|---" * COLUMNS + "|")
        if row < ROWS:
            writer.markup("\n")
    bottom = top + (ROWS + 1) * height
    for rule in (top, top + height, bottom):
        writer.line(MARGIN, rule, WIDTH - MARGIN, rule)
    return bottom


def _numbers(wording: Wording, count: int) -> list[str]:
    return [wording.number()[:7] for _ in range(count)]


def as_one_file(pages: list[Page], file: Path) -> Path:
    """The pages in one PDF file."""
    whole = pypdfium2.PdfDocument.new()
    for page in pages:
        part = pypdfium2.PdfDocument(page.pdf)
        whole.import_pages(part)
        part.close()
    whole.save(str(file))
    whole.close()
    return file


def in_html(markdown: str) -> str:
    """The same Markdown with its tables in HTML."""
    return _TABLE.sub(_html_table, markdown)


_TABLE = re.compile(r"(?:^\|.*\|(?:\n|$))+", re.MULTILINE)


def _html_table(found: re.Match[str]) -> str:
    lines = found.group().strip().split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return HTML_TABLES.write([rows[0], *rows[2:]])
