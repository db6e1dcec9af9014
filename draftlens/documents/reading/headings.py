"""Headings of a document and their levels, by bookmarks, numbers and fonts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from draftlens.documents.reading.page import PageFacts, Piece, Region

_NUMBERED = re.compile(r"^(\d{1,3}(?:\.\d{1,3})*)\.?\s+\S")
_CHAPTER = re.compile(
    r"^(chapter|part|appendix|annex|kapitel|teil|anhang|chapitre|partie|annexe)\b"
)

_SIZES = (1.7, 1.3, 1.1)
"""Sizes of headings of the first levels in sizes of the running text, at least."""

_LARGER = 1.12
_SLIGHTLY_LARGER = 1.04
"""Sizes from which a paragraph, or what a layout takes for a title, is a heading."""

_LONGEST = 200
_LONGEST_UNSEEN = 120
"""Characters of a heading, and of one that the layout has not found."""

_LEVELS = 6
_MOST_OFFSET = 1
"""Levels above the first numbered one: that of the document's title."""

_LEAST_LETTERS = 3
_ENDS_OF_TEXT = tuple(",;:.!?-\u2013")
"""Ends of what the layout has not taken for a heading and is none."""


@dataclass(frozen=True)
class HeadingCandidate:
    """A paragraph that may be a heading.

    Args:
        text: of the paragraph.
        size: of its font, or the height of its words, in points.
        has_font: whether `size` is that of a font.
        is_bold: whether all of it is.
        seen: whether the layout has taken it for a title.
        stands_apart: whether it stands as a heading does: a longer paragraph that is not bold
            follows in the same region, or it is a region of its own in bold capitals or with a
            number of three levels.
    """

    text: str
    size: float
    has_font: bool
    is_bold: bool
    seen: bool
    stands_apart: bool


@dataclass
class Headings:
    """What one document says about its headings, page by page."""

    _usual: float = 0.0
    _bookmarks: dict[str, int] = field(default_factory=dict)
    _levels: dict[tuple[float, bool], int] = field(default_factory=dict)
    _styles: dict[int, tuple[float, bool]] = field(default_factory=dict)
    _offset: int | None = None

    def read(self, pieces: Sequence[Piece], facts: PageFacts) -> None:
        """Note a page before its headings are asked for."""
        heights = [piece.box.height for piece in pieces for _ in piece.text]
        self._usual = facts.size or median(heights) or 1.0
        self._bookmarks.update((_letters(title), level) for title, level in facts.bookmarks)
        self._styles.clear()

    def is_one(self, paragraph: HeadingCandidate) -> bool:
        text = paragraph.text
        letters = _letters(text)
        if sum(map(str.isalpha, letters)) < _LEAST_LETTERS or len(text) > _LONGEST:
            return False
        if letters in self._bookmarks:
            return True
        ratio = paragraph.size / self._usual
        is_bold, has_font = paragraph.is_bold, paragraph.has_font
        is_numbered = _NUMBERED.match(text) is not None
        if paragraph.seen:
            is_marked = is_bold or is_numbered or text.isupper()
            return not has_font or ratio > _SLIGHTLY_LARGER or is_marked
        if not has_font or len(text) > _LONGEST_UNSEEN:
            return False
        if text.rstrip().endswith(_ENDS_OF_TEXT):
            return is_numbered and ratio > _LARGER
        return ratio > _LARGER or paragraph.stands_apart or (is_bold and is_numbered)

    def note(self, title: Region, size: float, is_bold: bool) -> None:
        """Note the font of a heading."""
        self._styles[id(title)] = (round(size, 1), is_bold)

    def with_levels(self, regions: Sequence[Region]) -> list[Region]:
        """The regions of a page; its headings have the levels of their bookmarks or of their
        numbers' depths, or else those of headings of the same style, or else by their sizes."""
        known = {
            id(region): self._stated(region) for region in regions if id(region) in self._styles
        }
        for place, level in known.items():
            if level is not None:
                self._levels[self._styles[place]] = level
        return [
            replace(region, level=self._level(region, known[id(region)]))
            if id(region) in known
            else region
            for region in regions
        ]

    def _stated(self, title: Region) -> int | None:
        """The level that a bookmark or a number states."""
        text = title.texts[0].text
        level = self._bookmarks.get(_letters(text))
        number = _NUMBERED.match(text)
        if level is None and number is not None:
            depth = number[1].count(".") + 1
            if self._offset is None:
                by_size = self._by_size(self._styles[id(title)][0])
                self._offset = min(max(by_size - depth, 0), _MOST_OFFSET)
            level = self._offset + depth
        if level is None and _CHAPTER.match(text.casefold()):
            level = 1
        return None if level is None else min(level, _LEVELS)

    def _level(self, title: Region, stated: int | None) -> int:
        style = self._styles[id(title)]
        return stated or self._levels.setdefault(style, self._by_size(style[0]))

    def _by_size(self, size: float) -> int:
        ratio = size / self._usual
        larger = (place for place, limit in enumerate(_SIZES, 1) if ratio >= limit)
        return next(larger, len(_SIZES) + 1)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
