"""The characters of a PDF page, as words with boxes.

pdfium gives the boxes of characters without /Rotate, and the size of the page with it. Here all
boxes are turned to the page as shown.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from typing import Any

from draftlens.documents.reading.blocks import with_blocks
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import BROKEN_WORD, Piece, TextLayer

_NO_TEXT = frozenset({"Cc", "Co", "Cn", "Cs"})
"""Unicode categories that are never text: control, private, unassigned, surrogate."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_PLAIN = frozenset({BROKEN_WORD, "\r", "\n", "\t"})
"""Control characters that pdfium itself writes."""


@dataclass(frozen=True)
class Turn:
    """From the space of a PDF file to the page as it is shown.

    Args:
        left, bottom, right, top: the visible part of the page in the space of the file, in which
            the vertical axis points up.
        degrees: clockwise rotation of the page, a multiple of 90.
        width: of the page as it is shown, in points.
    """

    left: float
    bottom: float
    right: float
    top: float
    degrees: int
    width: float

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        first = self._point(left, top)
        second = self._point(right, bottom)
        box = Box(
            min(first[0], second[0]),
            min(first[1], second[1]),
            max(first[0], second[0]),
            max(first[1], second[1]),
        )
        return box.scaled(self._unit)

    @property
    def _unit(self) -> float:
        """Points of a unit of the file: /UserUnit enlarges the page, not the boxes."""
        is_sideways = self.degrees % 180 == 90
        breadth = self.top - self.bottom if is_sideways else self.right - self.left
        return self.width / breadth if breadth > 0 else 1.0

    def _point(self, across: float, up: float) -> tuple[float, float]:
        from_left = across - self.left
        from_top = self.top - up
        width = self.right - self.left
        height = self.top - self.bottom
        if self.degrees == 90:
            return height - from_top, from_left
        if self.degrees == 180:
            return width - from_left, height - from_top
        if self.degrees == 270:
            return from_top, width - from_left
        return from_left, from_top


@dataclass
class _Collector:
    pieces: list[Piece] = field(default_factory=list)
    line: int = 0
    text: list[str] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)

    def add(self, character: str, box: Box) -> None:
        self.text.append(character)
        self.boxes.append(box)

    def end_word(self) -> None:
        if self.text:
            word = "".join(self.text)
            self.pieces.append(Piece(word, around(self.boxes), self.line))
        self.text = []
        self.boxes = []

    def end_line(self) -> None:
        self.end_word()
        self.line += 1


def read_characters(page: Any, shown: Box) -> TextLayer:
    """The words of pdfium's page, with its lock held; `shown` is the page as it is shown."""
    from pypdfium2 import raw

    left, bottom, right, top = page.get_bbox()
    turn = Turn(left, bottom, right, top, page.get_rotation(), shown.width)
    words = _Collector()
    num_characters = 0
    num_unreadable = 0
    text_page = page.get_textpage()
    try:
        rectangle = raw.FS_RECTF()
        for index in range(text_page.count_chars()):
            character = _character(raw.FPDFText_GetUnicode(text_page, index))
            if character in "\r\n":
                if character == "\n":
                    words.end_line()
                continue
            if character.isspace():
                words.end_word()
                continue
            num_characters += 1
            has_no_unicode = raw.FPDFText_HasUnicodeMapError(text_page, index) == 1
            num_unreadable += has_no_unicode or is_unreadable(character)
            raw.FPDFText_GetLooseCharBox(text_page, index, rectangle)
            box = turn.box(rectangle.left, rectangle.bottom, rectangle.right, rectangle.top)
            words.add(character, box)
            if character == BROKEN_WORD:
                words.end_line()
    finally:
        text_page.close()
    words.end_line()
    return TextLayer(tuple(with_blocks(words.pieces)), num_characters, num_unreadable)


def is_unreadable(character: str) -> bool:
    """Whether a character represents nothing printed."""
    if character in _PLAIN:
        return False
    return character == _REPLACEMENT or unicodedata.category(character) in _NO_TEXT


def _character(code: int) -> str:
    """The character of a code point; the replacement character if there is none."""
    is_half_pair = 0xD800 <= code <= 0xDFFF
    if code == 0 or code > 0x10FFFF or is_half_pair:
        return _REPLACEMENT
    return chr(code)
