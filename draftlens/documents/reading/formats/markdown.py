"""Markdown, with tables in its own notation or as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.notation import WITH_HTML, WITH_MARKDOWN, Notations
from draftlens.documents.reading.marks import BULLETS, DASHES
from draftlens.documents.reading.page import UNPRINTED, Region, RegionText
from draftlens.documents.reading.variants import clean, variants

_BULLET = re.compile(rf"^[{re.escape(BULLETS + DASHES)}]\s+")
_INDENT = " " * 4
_MARKED = re.compile(r"- |\d{1,3}[.)] ")
_NUMBER = re.compile(r"^\(?\d{1,3}[.)]\s+")


@dataclass(frozen=True)
class Markdown:
    """Paragraphs, headings, lists, tables, code and formulas without regions of the kinds of
    `leave_out`: figures and running heads and feet, as most targets do."""

    leave_out: tuple[str, ...] = UNPRINTED
    notations: Notations = WITH_MARKDOWN

    separate = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        if region.kind in self.leave_out:
            return []
        if text.markup:
            return [text.text]
        if region.kind == "table" and text.rows:
            return self.notations.tables(text.rows)
        if text.latex:
            return self.notations.formulas(text.text)
        if region.kind == "code":
            return ["```\n" + "\n".join(text.lines) + "\n```"]
        if text.breaks:
            return ["  \n".join(clean(line) for line in text.lines)]
        if region.kind == "list":
            items = items_of(text.lines)
            marked = [item if _MARKED.match(item) else f"- {item}" for item in items]
            return ["\n".join(_INDENT * region.level + item for item in marked)]
        if _is_list(text.lines):
            return ["\n".join(items_of(text.lines))]
        ways = variants(text.lines)
        if region.kind == "title":
            levels = (region.level,) if region.level else (1, 2)
            marks = ["#" * level + " " for level in levels]
            return [mark + way.replace("\n", " ") for way in ways[:2] for mark in marks]
        return ways

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        markdown = ""
        before = ""
        for region, text in parts:
            if text.strip():
                is_item = region.kind == before == "list"
                markdown += ("\n" if is_item else "\n\n") * bool(markdown) + text.rstrip()
                before = region.kind
        return markdown

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


def unmarked_items(lines: Sequence[str]) -> list[str]:
    """The items of a list without their bullets and numbers."""
    return [_MARKED.sub("", _NUMBER.sub("", item), count=1) for item in items_of(lines)]


def is_numbered(region: Region) -> bool:
    """Whether the first item of a list has a number."""
    return any(_NUMBER.match(line) for text in region.texts for line in text.lines[:1])
