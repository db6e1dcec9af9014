"""Paragraphs, headings, items of lists and code in the printed lines of regions.

A layout finds blocks of text; where a paragraph begins follows from its lines: their distances,
fonts and indentation, the marks of lists, and lines that end although the next word had room.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median

from draftlens.documents.reading.blocks import lines_of
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.headings import HeadingCandidate, Headings
from draftlens.documents.reading.marks import BULLETS, Marks
from draftlens.documents.reading.page import BROKEN_WORD, Piece, Region, RegionText
from draftlens.documents.reading.tables import Cell

_END = re.compile(r"[.!?:;\u2026\u3002]['\"\u2019\u201d\u00bb)\]]*$")
"""The end of a sentence, or of what introduces a list."""

LEADERS = re.compile(r"\s*(?:[._\u2026\u00b7]\s?){5,}\s*")
"""What leads from an entry of a table of contents to its page."""

_DEEP = re.compile(r"(\d{1,2}\.){2,5}\d{0,2} ")
"""The number of a heading of the third level or below."""

_OTHER_SIZE = 1.15
_OTHER_HEIGHT = 1.4
"""Ratios of the sizes of fonts, or where none are known of the heights of words, between parts."""

_WIDER = 1.35
"""Lines that are this many times as far apart as usual belong to two paragraphs."""

_USUAL_PITCH = 1.25
"""Distance of lines in heights of a line, where there are too few of them to tell."""

_INDENT = 0.7
"""Height of a line from which a shift counts as indentation."""

_SPACE = 0.35
"""Width of a space in heights of a line."""

_SUPERSCRIPT = 0.8
"""Size of a note's number in sizes of its text, at most."""

_LINES_OF_TITLE = 4
"""Parts from which what a layout takes for one title is divided."""

_LED = 3
"""Length of the paragraph after a heading in bold type in lengths of the heading, at least."""

_CENTRED = 3.0
"""Points by which the middles of centred lines differ at most, and their left ends at least."""

_MOST_COLUMNS = 1000
"""Characters of the longest line of code whose spaces are kept."""

_LINES_OF_ADDRESS = 60
"""Characters of the longest line of an address."""


class Line(Cell):
    """A printed line of a region."""

    @cached_property
    def has_font(self) -> bool:
        return all(piece.size for piece in self.pieces)

    @cached_property
    def size(self) -> float:
        """Of most of its characters: the size of the font, or else the height of the words."""
        return median(piece.size or piece.box.height for piece in self.pieces for _ in piece.text)

    @cached_property
    def is_bold(self) -> bool:
        return all(piece.bold for piece in self.pieces)

    @cached_property
    def is_fixed(self) -> bool:
        return all(piece.fixed for piece in self.pieces)

    @property
    def ends_sentence(self) -> bool:
        return bool(_END.search(self.text))


@dataclass(frozen=True)
class Part:
    """Consecutive lines of a region; `marked`: they are an item of a list."""

    lines: list[Line]
    marked: bool = False

    @property
    def pieces(self) -> list[Piece]:
        return [piece for line in self.lines for piece in line.pieces]

    @property
    def text(self) -> str:
        return " ".join(line.text for line in self.lines)

    @property
    def size(self) -> float:
        return max(line.size for line in self.lines)

    @property
    def is_bold(self) -> bool:
        return all(line.is_bold for line in self.lines)


class _Column:
    """Where the lines of a region begin a paragraph."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.left = min(line.box.left for line in lines)
        self.width = max(line.box.right for line in lines) - self.left
        self.height = median(line.box.height for line in lines)
        distances = [
            lower.box.middle[1] - upper.box.middle[1]
            for upper, lower in pairwise(lines)
            if 0 < lower.box.middle[1] - upper.box.middle[1] < 3 * self.height
        ]
        usual = _USUAL_PITCH * self.height
        self.pitch = median(distances) if len(distances) > 1 else usual

    def has_room(self, line: Line, following: Line) -> bool:
        """Whether the first word of the next line would fit at the end of a line."""
        word = following.pieces[0].box.width + _SPACE * self.height
        return self.width - (line.box.right - self.left) > word

    def divides(self, part: Part, line: Line, following: Line | None) -> bool:
        """Whether a line without a mark does not continue a part."""
        last = part.lines[-1]
        has_room = self.has_room(last, line)
        shift = line.box.left - last.box.left
        is_shifted = abs(shift) > _INDENT * self.height
        may_end = last.ends_sentence or has_room
        if LEADERS.search(last.text) or self._is_other(last, line, has_room):
            return True
        if line.is_fixed and last.is_fixed:
            return False  # code keeps its lines
        if line.box.middle[1] - last.box.middle[1] > _WIDER * self.pitch:
            return True
        if _is_note(line) and may_end:
            return True
        if has_room and (is_shifted or last.ends_sentence):
            return not line.text[0].islower()
        if not is_shifted:
            return False
        if shift < 0:  # the first line of a paragraph, or of the next entry
            first = part.lines[0].box.left
            is_entry = abs(first - line.box.left) < _INDENT * self.height < last.box.left - first
            return may_end and (is_entry or last is not part.lines[0])
        is_first = following is None or following.box.left < line.box.left - _INDENT * self.height
        return is_first and last.ends_sentence and not part.marked

    def _is_other(self, last: Line, line: Line, has_room: bool) -> bool:
        """Whether a line has another font than the one before it."""
        known = last.has_font and line.has_font
        limit = _OTHER_SIZE if known else _OTHER_HEIGHT
        if max(last.size, line.size) > limit * min(last.size, line.size):
            return True
        if last.is_fixed != line.is_fixed and (has_room or last.ends_sentence):
            return True
        return last.is_bold != line.is_bold and (last.is_bold or has_room)


def _is_note(line: Line) -> bool:
    """Whether a line begins with the raised number of a footnote."""
    first = line.pieces[0]
    return len(line.pieces) > 1 and first.text.isdigit() and first.size < _SUPERSCRIPT * line.size


def parts_of(pieces: Sequence[Piece], marks: Marks) -> list[Part]:
    """The words of a region by paragraphs, headings, items and code."""
    lines = _whole_lines([Line(tuple(line)) for line in lines_of(pieces)])
    column = _Column(lines)
    parts: list[Part] = []
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else None
        last = parts[-1].lines[-1] if parts else None
        at_break = last is None or last.ends_sentence or column.has_room(last, line)
        if len(line.pieces) > 1 and marks.begins(line.pieces[0].text, at_break):
            parts.append(Part([line], marked=True))
        elif not parts or column.divides(parts[-1], line, following):
            parts.append(Part([line]))
        else:
            parts[-1].lines.append(line)
    return parts


def _whole_lines(lines: Sequence[Line]) -> list[Line]:
    """Lines whose parts wide spaces have separated."""
    whole: list[Line] = []
    for line in lines:
        if whole and _continues(whole[-1].box, line.box):
            whole[-1] = Line((*whole[-1].pieces, *line.pieces))
        else:
            whole.append(line)
    return whole


def _continues(box: Box, other: Box) -> bool:
    """Whether a box stands at the right of another one, in one line with it."""
    is_level = abs(box.middle[1] - other.middle[1]) < min(box.height, other.height) / 2
    return is_level and other.left >= box.right


def divided(
    region: Region, pieces: Sequence[Piece], source: str, marks: Marks, headings: Headings
) -> list[Region]:
    """A region of running text as regions of paragraphs, headings, items of lists and code, with
    their texts."""
    parts = parts_of(pieces, marks)
    if region.kind == "title" and len(parts) < _LINES_OF_TITLE:
        parts = [Part([line for part in parts for line in part.lines])]
    found = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        stands_apart = _leads(part, following) or (len(parts) == 1 and _is_label(part))
        found.append(_region(region, part, stands_apart, source, headings))
    return found


def _region(
    region: Region, part: Part, stands_apart: bool, source: str, headings: Headings
) -> Region:
    """A part with its text; `stands_apart` as a heading does (`HeadingCandidate`)."""
    kind = region.kind
    if kind in ("text", "title", "list") or (kind == "caption" and _DEEP.match(part.text)):
        kind = _kind(part, kind == "title", stands_apart, headings)
    lines = part.lines
    texts = _indented(lines) if kind == "code" else [line.text for line in lines]
    if kind == "list":
        texts = [LEADERS.sub(" \u2026 ", text) for text in texts]
    score = fmean(piece.score for piece in part.pieces)
    text = RegionText(source, tuple(texts), score, breaks=_is_address(kind, lines))
    box = around(line.box for line in lines)
    divided_region = replace(region, box=box, kind=kind, texts=(text,))
    if kind == "title":
        headings.note(divided_region, part.size, part.is_bold)
    return divided_region


def _kind(part: Part, seen: bool, stands_apart: bool, headings: Headings) -> str:
    """The kind of a part of running text; `seen`: the layout takes it for a title."""
    if _is_code(part.lines):
        return "code"
    if LEADERS.search(part.text):
        return "list"
    has_font = part.lines[0].has_font
    paragraph = HeadingCandidate(part.text, part.size, has_font, part.is_bold, seen, stands_apart)
    if part.text[0] not in BULLETS and headings.is_one(paragraph):
        return "title"
    return "list" if part.marked else "text"


def _leads(part: Part, following: Part | None) -> bool:
    """Whether a part in bold type stands above a longer one that is no address, nor the definition
    of a term, whose lines are indented."""
    if following is None or not part.is_bold or following.lines[0].is_bold:
        return False
    edge = part.lines[0].box.left + _INDENT * part.lines[0].box.height
    if all(line.box.left > edge for line in following.lines):
        return False
    is_longer = sum(len(line.text) for line in following.lines) > _LED * len(part.text)
    return is_longer and not _is_address("text", following.lines)


def _is_label(part: Part) -> bool:
    """Whether a part is in bold capitals, or one line with a number of three levels."""
    is_deep = len(part.lines) == 1 and _DEEP.match(part.text) is not None
    return is_deep or (part.is_bold and part.text.isupper())


def _is_code(lines: Sequence[Line]) -> bool:
    """Whether lines are code rather than a word or addresses."""
    words = [piece.text for line in lines for piece in line.pieces]
    is_alone = len(lines) == 1 and (len(words) == 1 or all("@" in word for word in words))
    return all(line.is_fixed for line in lines) and not is_alone


def _is_address(kind: str, lines: Sequence[Line]) -> bool:
    """Whether the lines of a paragraph end where its author wants it: each begins with a capital
    or a digit, none is long, and one ends before the column does."""
    if kind != "text" or len(lines) < 2:
        return False
    column = _Column(lines)
    rooms = sum(column.has_room(*both) for both in pairwise(lines))
    return (
        all(len(line.text) < _LINES_OF_ADDRESS for line in lines)
        and not any(line.text[0].islower() for line in lines)
        and not any(line.text.endswith((",", "-", BROKEN_WORD)) for line in lines[:-1])
        and (_are_centred(lines) or 2 * rooms >= len(lines) - 1)
    )


def _are_centred(lines: Sequence[Line]) -> bool:
    lefts = [line.box.left for line in lines]
    middles = [line.box.middle[0] for line in lines]
    return max(lefts) - min(lefts) > _CENTRED > max(middles) - min(middles)


def _indented(lines: Sequence[Line]) -> list[str]:
    """Lines of code with spaces before and between words as wide as those on the page."""
    left = min(line.box.left for line in lines)
    pieces = [piece for line in lines for piece in line.pieces]
    width = sum(piece.box.width for piece in pieces) / sum(len(piece.text) for piece in pieces)
    written = []
    for line in lines:
        text = ""
        for piece in line.pieces:
            place = (piece.box.left - left) / width if width else 0.0
            column = round(place) if 0 <= place < _MOST_COLUMNS else 0  # damaged files have any
            text += " " * max(column - len(text), 1 if text else 0) + piece.text
        written.append(text)
    return written
