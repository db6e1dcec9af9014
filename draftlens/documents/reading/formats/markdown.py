"""Markdown, with tables in its own notation or as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.values import UNPRINTED, Region, RegionText
from draftlens.documents.reading.variants import clean, variants

_BULLET = re.compile(r"^[\u2022\u2023\u25aa\u25cf\u25e6\u2043\u2219*\u2013-]\s+")
_NUMBER = re.compile(r"^\(?\d{1,3}[.)]\s+")


@dataclass(frozen=True)
class Markdown:
    """Paragraphs, headings, lists and tables in Markdown.

    Args:
        leave_out: whether figures and running heads and feet are left out, as most targets do.
    """

    leave_out: bool = True

    separate = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        if self.leave_out and region.kind in UNPRINTED:
            return []
        if text.markup:
            return [text.text]
        if region.kind == "table" and text.rows:
            return [self._table(text.rows), *variants(text.lines)[:1]]
        if _is_list(text.lines):
            return ["\n".join(items_of(text.lines))]
        ways = variants(text.lines)
        if region.kind == "title":
            return [mark + way.replace("\n", " ") for way in ways[:2] for mark in ("# ", "## ")]
        return ways

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        return "\n\n".join(text.strip() for _, text in parts if text.strip())

    def _table(self, rows: Sequence[Sequence[str]]) -> str:
        return markdown_table(rows)


@dataclass(frozen=True)
class MarkdownWithHtmlTables(Markdown):
    """Markdown whose tables are HTML."""

    def _table(self, rows: Sequence[Sequence[str]]) -> str:
        return html_table(rows)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table with its first row as the head; short rows are padded."""
    width = max(len(row) for row in rows)
    lines = []
    for row in rows:
        cells = [*map(_cell, row), *([""] * (width - len(row)))]
        lines.append("| " + " | ".join(cells) + " |")
    lines.insert(1, "|" + "---|" * width)
    return "\n".join(lines)


def _cell(text: str) -> str:
    return clean(text).replace("|", "\\|")


def html_table(rows: Sequence[Sequence[str]]) -> str:
    written = []
    for row in rows:
        cells = "".join(f"<td>{html.escape(clean(cell), quote=False)}</td>" for cell in row)
        written.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(written)}</table>"


def _is_list(lines: Sequence[str]) -> bool:
    """Whether the first line and another one begin with a mark."""
    marked = [bool(_BULLET.match(line) or _NUMBER.match(line)) for line in lines]
    return len(marked) > 1 and marked[0] and sum(marked) > 1


def items_of(lines: Sequence[str]) -> list[str]:
    """The items of a list, each on one line."""
    items: list[list[str]] = []
    for line in lines:
        if _BULLET.match(line) or _NUMBER.match(line) or not items:
            items.append([_BULLET.sub("- ", line)])
        else:
            items[-1].append(line)
    return [variants(item)[0] for item in items if any(part.strip() for part in item)]
