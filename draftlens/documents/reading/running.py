"""Running heads and feet: lines at the edges of a page that its neighbours repeat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.documents.reading.blocks import lines_of
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import Piece

_EDGE = 0.12
"""Share of a page's height at its top and bottom where running heads and feet stand."""

_MOST_LINES = 3
"""Lines at each edge that are compared."""

_SHIFT = 4.0
"""Points by which the heights of repeated lines differ at most."""

_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
"""Arabic and Roman numbers, which differ from page to page."""


@dataclass(frozen=True)
class Line:
    """A line at an edge of a page, with `#` in place of numbers."""

    text: str
    box: Box


def lines_at_edges(pieces: Sequence[Piece], page: Box) -> tuple[Line, ...]:
    """The lines that may be a page's running heads and feet."""
    lines = []
    for line in lines_of(pieces):
        text = " ".join(piece.text for piece in line).casefold()
        lines.append(Line(_NUMBER.sub("#", text), around(piece.box for piece in line)))
    lines.sort(key=lambda line: line.box.middle[1])
    edge = _EDGE * page.height
    top = [line for line in lines if line.box.bottom < page.top + edge]
    bottom = [line for line in lines if line.box.top > page.bottom - edge]
    return (*top[:_MOST_LINES], *bottom[-_MOST_LINES:])


def repeated(lines: Sequence[Line], others: Sequence[Line]) -> tuple[Box, ...]:
    """The boxes of lines that other pages have at the same height, and of those beside them."""
    heights = [
        line.box.middle[1]
        for line in lines
        if any(line.text == other.text and _are_level(line.box, other.box) for other in others)
    ]
    return tuple(
        line.box
        for line in lines
        if any(abs(line.box.middle[1] - height) <= _SHIFT for height in heights)
    )


def _are_level(one: Box, other: Box) -> bool:
    return abs(one.middle[1] - other.middle[1]) <= _SHIFT
