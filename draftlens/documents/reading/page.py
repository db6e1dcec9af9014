"""Pages of documents, and what readers and pipelines find on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from PIL import Image

from draftlens.core.errors import InputError
from draftlens.documents.reading.geometry import Box

KINDS = (
    "text",
    "title",
    "list",
    "table",
    "figure",
    "caption",
    "code",
    "formula",
    "header",
    "footer",
)

UNPRINTED = ("figure", "header", "footer")
"""Kinds that most targets leave out of their Markdown."""

BROKEN_WORD = "\x02"
"""pdfium's mark for the hyphen of a word that is broken at the end of a line."""


@dataclass(frozen=True)
class Piece:
    """A word of a printed line, or a whole line.

    Args:
        text: its characters, without line breaks.
        line: number of its printed line.
        block: number of its paragraph or column part.
        score: the reader's confidence, from 0 to 1.
        size: of its font, in points; 0 where the reader knows no fonts.
        bold: whether its font is bold.
        fixed: whether its font has characters of one width.
    """

    text: str
    box: Box
    line: int
    block: int = 0
    score: float = 1.0
    size: float = 0.0
    bold: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class Reading:
    """The words of a page in a reader's order; `fault` is why they are not trusted, as a clause."""

    source: str
    pieces: tuple[Piece, ...]
    fault: str | None = None


@dataclass(frozen=True)
class RegionText:
    """The text of a region by one reader or the target.

    Args:
        source: name of the reader; `"target"` for the answer for a crop.
        lines: printed lines without line breaks. `BROKEN_WORD` at the end of a line is a hyphen
            that breaks a word.
        score: the reader's mean confidence, from 0 to 1.
        rows: of a table, the cells of each row; empty elsewhere.
        markup: whether the text is already in the target's format.
        latex: whether the lines are the LaTeX of a formula, without marks around it.
        breaks: whether lines end where their author wants it, as those of an address.
    """

    source: str
    lines: tuple[str, ...]
    score: float = 1.0
    rows: tuple[tuple[str, ...], ...] = ()
    markup: bool = False
    latex: bool = False
    breaks: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Region:
    r"""A part of a page that is read as one.

    Args:
        box: in points from the top left of the page as it is shown.
        kind: one of `KINDS`.
        order: its place in the order of reading, from 0.
        texts: by reader, the most trusted first.
        score: confidence of the layout, from 0 to 1.
        level: of a title, from 1 for the highest; the depth of a list's item, from 0; 0 where it
            is not known.

    Raises:
        InputError: the kind is unknown.

    Example:

        >>> text = RegionText("mine", ("A line", "and another"))
        >>> Region(Box(0, 0, 300, 40), "text", 0, (text,)).texts[0].text
        'A line\nand another'
    """

    box: Box
    kind: str
    order: int = 0
    texts: tuple[RegionText, ...] = field(default=())
    score: float = 1.0
    level: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown kind of region {self.kind!r}; known: {', '.join(KINDS)}")


def in_order(regions: Sequence[Region]) -> list[Region]:
    return sorted(regions, key=lambda region: region.order)


@dataclass(frozen=True)
class PageFacts:
    """What a file says about one of its pages besides the words.

    Args:
        bookmarks: titles of the file's outline that lead to the page, with their levels, from 1.
        running: boxes of lines at its edges that neighbouring pages have at the same place.
        rules: boxes of horizontal and vertical lines that are drawn on the page.
        size: of the font of most characters of the pages that were read so far, in points; 0 where
            no fonts are known.
    """

    bookmarks: tuple[tuple[str, int], ...] = ()
    running: tuple[Box, ...] = ()
    rules: tuple[Box, ...] = ()
    size: float = 0.0


class TextLayer:
    """The characters that a PDF states for a page.

    Args:
        pieces: words with their boxes, in the order of the file.
        num_characters: characters without spaces.
        num_unreadable: those without a mapping to Unicode, in a private area, control characters,
            or the replacement character.
    """

    def __init__(self, pieces: tuple[Piece, ...], num_characters: int, num_unreadable: int) -> None:
        self.pieces = pieces
        self.num_characters = num_characters
        self.num_unreadable = num_unreadable


class Page(Protocol):
    """One page of a document; read on demand."""

    source: str
    """The file, for messages and results."""

    number: int
    """The page's number in its file, from 1."""

    box: Box
    """The whole page as it is shown, in points; its left and top are 0."""

    def picture(self, dpi: float) -> Image.Image:
        """The page as an RGB image of about `dpi` pixels an inch, fewer for scans, which are not
        enlarged; divide its width by that of `box` for its scale.

        Raises:
            MediaError: the page cannot be rendered, or it would have too many pixels.
        """
        ...

    def text_layer(self) -> TextLayer | None:
        """The characters that the file states; None for pictures, which state none."""
        ...

    def facts(self) -> PageFacts:
        """What the file says about the page besides its words; nothing for pictures."""
        ...
