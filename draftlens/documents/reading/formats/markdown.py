"""Markdown, with tables in its own notation or as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.notation import WITH_HTML, WITH_MARKDOWN, Notations
from draftlens.documents.reading.page import UNPRINTED, Region, RegionText
from draftlens.documents.reading.variants import variants

_BULLET = re.compile(r"^[\u2022\u2023\u25aa\u25cf\u25e6\u2043\u2219*\u2013-]\s+")
_NUMBER = re.compile(r"^\(?\d{1,3}[.)]\s+")


@dataclass(frozen=True)
class Markdown:
    """Paragraphs, headings, lists, tables and formulas; `leave_out` drops figures and running heads
    and feet, as most targets do."""

    leave_out: bool = True
    notations: Notations = WITH_MARKDOWN

    separate = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        if self.leave_out and region.kind in UNPRINTED:
            return []
        if text.markup:
            return [text.text]
        if region.kind == "table" and text.rows:
            return self.notations.tables(text.rows)
        if text.latex:
            return self.notations.formulas(text.text)
        if _is_list(text.lines):
            return ["\n".join(items_of(text.lines))]
        ways = variants(text.lines)
        if region.kind == "title":
            return [mark + way.replace("\n", " ") for way in ways[:2] for mark in ("# ", "## ")]
        return ways

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        return "\n\n".join(text.strip() for _, text in parts if text.strip())

    def after(self, answer: str) -> Markdown:
        return replace(self, notations=self.notations.after(answer))


@dataclass(frozen=True)
class MarkdownWithHtmlTables(Markdown):
    notations: Notations = WITH_HTML


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
