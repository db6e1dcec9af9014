"""Blocks of text and how they are set: paragraphs, headings, lists and tables."""

from dataclasses import dataclass

import numpy as np

from recipes.reader.page import EMBEDDED_FAMILY, FAMILIES, NOT_SAID, Face, Writer
from recipes.reader.words import Split, Wording

BODY_SIZES = (14.0, 14.5, 15.0, 17.0, 18.0)
HELD_OUT_BODY_SIZES = (16.0,)
HEADING_SIZE = 21.0
TITLE_SIZE = 26.0
PAGE_KINDS = ("paragraph", "bullets", "numbered", "table", "heading")
PAGE_SHARES = (0.56, 0.13, 0.08, 0.11, 0.12)


@dataclass(frozen=True)
class Style:
    """The fonts of a page or crop.

    Args:
        family: key of `FAMILIES`.
        size: of running text, in pixels.
        leading: distance of baselines, as a multiple of the size.
        justified: whether lines of paragraphs end at the same place.
        italic: whether running text is italic.
        grid: whether tables have vertical lines.
    """

    family: str
    size: float
    leading: float
    justified: bool = False
    italic: bool = False
    grid: bool = False

    @property
    def body(self) -> Face:
        """The face of running text."""
        return Face(FAMILIES[self.family][2 if self.italic else 0], self.size)

    def bold(self, size: float) -> Face:
        """A bold face of the family."""
        return Face(FAMILIES[self.family][1], size)


@dataclass(frozen=True)
class Column:
    """A part of a page in which blocks stand below each other, in pixels from the top left."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left


def random_style(rng: np.random.Generator, split: Split) -> Style:
    """A style of one split: the sizes of the held-out one are never trained on."""
    sizes = HELD_OUT_BODY_SIZES if split.held_out else BODY_SIZES
    family = str(rng.choice(list(FAMILIES), p=(0.4, 0.36, 0.1, 0.14)))
    return Style(
        family,
        float(rng.choice(sizes)),
        float(rng.uniform(1.12, 1.45)),
        # Files of embedded fonts hold no spaces that could be widened; their words are drawn whole.
        justified=family != EMBEDDED_FAMILY and rng.random() < 0.3,
        italic=rng.random() < 0.12,
        grid=rng.random() < 0.4,
    )


class Composer:
    """Sets random blocks on a page.

    Args:
        writer: draws the page.
        wording: draws the words.
        style: the fonts.
        mixed: whether `fill` draws a style for each block.
    """

    def __init__(self, writer: Writer, wording: Wording, style: Style, mixed: bool = False) -> None:
        self.writer = writer
        self.wording = wording
        self.style = style
        self.mixed = mixed
        self.rng = wording.rng

    def fill(self, column: Column) -> None:
        """Set blocks until a column is full."""
        top = column.top
        previous = ""
        while True:
            kind = str(self.rng.choice(PAGE_KINDS, p=PAGE_SHARES))
            if kind == previous and kind != "paragraph":
                continue
            if self.mixed:
                self.style = random_style(self.rng, self.wording.split)
            bottom = self.block(kind, column, top)
            if bottom == top:
                return
            previous = kind
            top = bottom + float(self.rng.uniform(0.5, 1.0)) * self.style.size

    def block(self, kind: str, column: Column, top: float) -> float:
        """Set one block, as far as it fits.

        Returns:
            Its bottom, or ``top`` if there is no room for a line.
        """
        size = {"title": TITLE_SIZE, "heading": HEADING_SIZE}.get(kind, self.style.size)
        if top + 1.1 * size > column.bottom:
            return top
        if kind == "table" and top + 2 * self._row_height() > column.bottom:
            kind = "paragraph"
        if self.writer.markdown:
            self.writer.markup("\n\n")
        start = len(self.writer.markdown)
        if kind in ("title", "heading"):
            bottom = self._heading(kind, column, top)
        elif kind in ("bullets", "numbered"):
            bottom = self._list(kind, column, top)
        elif kind == "table":
            bottom = self._table(column, top)
        else:
            bottom = self._paragraph(column, top)
        self.writer.region(kind, (column.left, top, column.right, bottom), start)
        return bottom

    def edge(self, kind: str, left: float, baseline: float) -> None:
        """Set a head or a foot: a short line and a page number."""
        face = Face(FAMILIES[self.style.family][2], 14.0)
        text = " ".join(self.wording.words(int(self.rng.integers(1, 4))))[:18]
        right = self.writer.width - left
        number = str(self.rng.integers(1, 400))
        self.writer.stamp(text, left, baseline, face)
        self.writer.stamp(number, right - face.width(number), baseline, face)
        if self.rng.random() < 0.5:
            offset = 5 if kind == "head" else -17
            self.writer.line(left, baseline + offset, right, baseline + offset)
        self.writer.region(kind, (left, baseline - 12, right, baseline + 4), NOT_SAID)

    def _heading(self, kind: str, column: Column, top: float) -> float:
        self.writer.markup("# " if kind == "title" else "## ")
        size = TITLE_SIZE if kind == "title" else HEADING_SIZE
        face = self.style.bold(size)
        lines = self._lines(self.wording.title(), face, column.width)
        return self._set(lines[:2], face, column, top, 1.15)

    def _paragraph(self, column: Column, top: float) -> float:
        words: list[str] = []
        for _ in range(int(self.rng.integers(1, 5))):
            words += self.wording.sentence()
        lines = self._lines(words, self.style.body, column.width)
        return self._set(
            lines, self.style.body, column, top, self.style.leading, self.style.justified
        )

    def _list(self, kind: str, column: Column, top: float) -> float:
        face = self.style.body
        indent = face.width("99. ")
        inner = Column(column.left + indent, top, column.right, column.bottom)
        first = int(self.rng.integers(1, 8))
        bottom = top
        end = top
        for index in range(int(self.rng.integers(2, 6))):
            if bottom + 1.1 * face.size > column.bottom:
                break
            if index:
                self.writer.markup("\n")
            baseline = bottom + 0.9 * face.size
            if kind == "bullets":
                self.writer.say_bullet(column.left, baseline, face)
            else:
                self.writer.say(f"{first + index}.", column.left, baseline, face)
            self.writer.markup(" ")
            words = self.wording.words(int(self.rng.integers(1, 9)))
            lines = self._lines(words, face, inner.width)
            end = self._set(lines, face, inner, bottom, self.style.leading)
            bottom = end + (self.style.leading - 1.1) * face.size
        return end

    def _table(self, column: Column, top: float) -> float:
        """A table whose first line is its head; lines above, below the head and at the end."""
        face = self.style.body
        columns = int(self.rng.integers(2, 4 if column.width < 300 else 5))
        cell_width = column.width / columns
        height = self._row_height()
        rows = min(int(self.rng.integers(2, 7)), int((column.bottom - top) // height))
        rules = [top]
        for row in range(rows):
            baseline = top + row * height + 0.95 * face.size + 2
            row_face = self.style.bold(face.size) if row == 0 else face
            self.writer.markup("|")
            for index in range(columns):
                self.writer.markup(" ")
                text = self._cell(row, index, row_face, cell_width - 8)
                self.writer.say(text, column.left + index * cell_width + 4, baseline, row_face)
                self.writer.markup(" |")
            if row == 0:
                self.writer.markup("\n" + "|---" * columns + "|")
                rules.append(top + height)
            if row + 1 < rows:
                self.writer.markup("\n")
        bottom = top + rows * height
        for rule in [*rules, bottom]:
            self.writer.line(column.left, rule, column.right, rule)
        if self.style.grid:
            for index in range(columns + 1):
                place = column.left + index * cell_width
                self.writer.line(place, top, place, bottom)
        return bottom

    def _row_height(self) -> float:
        """Height of a table's row."""
        return self.style.leading * self.style.size + 4

    def _cell(self, row: int, index: int, face: Face, room: float) -> str:
        """The text of a table's cell: words in the head and in the first column, else numbers."""
        while True:
            if row == 0 or index == 0:
                text = self.wording.word().capitalize()
            elif self.rng.random() < 0.7:
                text = self.wording.number()
            else:
                text = self.wording.item()
            if face.width(text) <= room:
                return text
            if room < 5 * face.size:
                return text[: max(1, int(room // face.size))]

    def _lines(self, words: list[str], face: Face, width: float) -> list[list[str]]:
        """Words divided into lines; a word that is wider than a line is cut."""
        space = face.width(" ")
        lines: list[list[str]] = []
        used = width + 1.0
        for word in words:
            while face.width(word) > width:
                word = word[:-1]
            needed = face.width(word)
            if used + space + needed > width:
                lines.append([])
                used = -space
            lines[-1].append(word)
            used += space + needed
        return lines

    def _set(
        self,
        lines: list[list[str]],
        face: Face,
        column: Column,
        top: float,
        leading: float,
        justified: bool = False,
    ) -> float:
        """Set the lines that fit; return their bottom."""
        advance = leading * face.size
        fitting = max(1, int((column.bottom - top + (leading - 1) * face.size) // advance))
        lines = lines[:fitting]
        for index, words in enumerate(lines):
            if index:
                self.writer.markup(" ")
            baseline = top + index * advance + 0.9 * face.size
            if justified and len(words) > 2 and index + 1 < len(lines):
                self._set_justified(words, face, column, baseline)
            else:
                self.writer.say(" ".join(words), column.left, baseline, face)
        return top + (len(lines) - 1) * advance + 1.1 * face.size

    def _set_justified(self, words: list[str], face: Face, column: Column, baseline: float) -> None:
        """Set a line whose words fill the column's width."""
        widths = [face.width(word) for word in words]
        gap = (column.width - sum(widths)) / (len(words) - 1)
        left = column.left
        for index, word in enumerate(words):
            if index:
                self.writer.markup(" ")
            self.writer.say(word, left, baseline, face)
            left += widths[index] + gap
