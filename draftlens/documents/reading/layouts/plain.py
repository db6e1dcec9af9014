"""Layouts that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.values import Piece, Region

_TITLE = 1.25
"""A block whose lines are this many times as tall as usual is a title."""

_LONGEST_TITLE = 200
"""Characters of a title."""


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of lines, from the reader. Tall ones are titles."""

    sees = False

    def missing(self) -> str | None:
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        """See `Layout.find`; the whole page if nothing was read on it."""
        if not pieces:
            return WholePage().find(page, pieces)
        blocks: dict[int, list[Piece]] = {}
        for piece in pieces:
            blocks.setdefault(piece.block, []).append(piece)
        usual = median(piece.box.height for piece in pieces)
        return [_region(block, usual, page.box) for block in blocks.values()]


@dataclass(frozen=True)
class WholePage:
    sees = False

    def missing(self) -> str | None:
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        return [Region(page.box, "text")]


def _region(pieces: Sequence[Piece], usual_height: float, whole: Box) -> Region:
    height = median(piece.box.height for piece in pieces)
    length = sum(len(piece.text) + 1 for piece in pieces)
    is_title = height > _TITLE * usual_height and length <= _LONGEST_TITLE
    box = around(piece.box for piece in pieces).within(whole)
    return Region(box, "title" if is_title else "text")
