"""The characters of a PDF page, as words with boxes.

pdfium gives the boxes of characters without /Rotate, and the size of the page with it. Here all
boxes are turned to the page as shown.
"""

from __future__ import annotations

import ctypes
import re
import unicodedata
from dataclasses import dataclass, field
from math import hypot
from typing import Any

from draftlens.documents.reading.blocks import with_blocks
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import BROKEN_WORD, Piece, TextLayer

_NO_TEXT = frozenset({"Cc", "Co", "Cn", "Cs"})
"""Unicode categories that are never text: control, private, unassigned, surrogate."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_PLAIN = frozenset({BROKEN_WORD, "\r", "\n", "\t"})
"""Control characters that pdfium itself writes."""


_BOLD = re.compile(r"bold|black|heavy|demi|cmbx", re.IGNORECASE)
_FIXED = re.compile(r"mono|courier|consol|typewriter|menlo|cmtt|tt$", re.IGNORECASE)
"""Names of fonts; files set the flags of pitch and weight rarely."""

_NAME_BYTES = 128

_HEAVY = 600
"""Weight from which a font is bold."""


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


def turn_of(page: Any, width: float) -> Turn:
    """Of pdfium's page, which is shown `width` points wide."""
    left, bottom, right, top = page.get_bbox()
    return Turn(left, bottom, right, top, page.get_rotation(), width)


@dataclass
class _Collector:
    text_page: Any
    pieces: list[Piece] = field(default_factory=list)
    line: int = 0
    text: list[str] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    first: int = 0

    def add(self, character: str, box: Box, index: int) -> None:
        if not self.text:
            self.first = index
        self.text.append(character)
        self.boxes.append(box)

    def end_word(self) -> None:
        if self.text:
            word = "".join(self.text)
            font = _font(self.text_page, self.first)
            self.pieces.append(Piece(word, around(self.boxes), self.line, 0, 1.0, *font))
        self.text = []
        self.boxes = []

    def end_line(self) -> None:
        self.end_word()
        self.line += 1


def read_characters(page: Any, shown: Box) -> TextLayer:
    """The words of pdfium's page, with its lock held; `shown` is the page as it is shown."""
    from pypdfium2 import raw

    turn = turn_of(page, shown.width)
    num_characters = 0
    num_unreadable = 0
    text_page = page.get_textpage()
    words = _Collector(text_page)
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
            words.add(character, box, index)
            if character == BROKEN_WORD:
                words.end_line()
        words.end_line()
    finally:
        text_page.close()
    return TextLayer(tuple(with_blocks(words.pieces)), num_characters, num_unreadable)


def _font(text_page: Any, index: int) -> tuple[float, bool, bool]:
    """Size in points, and whether it is bold and of fixed pitch, of a character's font; 0 for text
    that is not shown, which programs lay over scans in any font."""
    from pypdfium2 import raw

    shown_text = raw.FPDFText_GetTextObject(text_page, index)
    if raw.FPDFTextObj_GetTextRenderMode(shown_text) == raw.FPDF_TEXTRENDERMODE_INVISIBLE:
        return 0.0, False, False
    matrix = raw.FS_MATRIX()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    flags = ctypes.c_int()
    size = raw.FPDFText_GetFontSize(text_page, index)
    if raw.FPDFText_GetMatrix(text_page, index, matrix):
        size *= hypot(matrix.c, matrix.d)
    raw.FPDFText_GetFontInfo(text_page, index, name, _NAME_BYTES, flags)
    font = name.value.decode("utf-8", "replace")
    is_heavy = raw.FPDFText_GetFontWeight(text_page, index) >= _HEAVY
    return size, is_heavy or bool(_BOLD.search(font)), bool(_FIXED.search(font))


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
