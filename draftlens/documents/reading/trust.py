"""Whether a text layer agrees with the printed page."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.values import Piece, Reading, Region

_LEAST_FILLED = 0.5
"""Share of the regions with text, by area, in which a text layer must have characters."""

_PRINTED = ("text", "title", "list", "table", "caption")
"""Kinds of regions that hold text."""

LEAST_USED = 0.1
"""Smallest share of an answer's tokens from drafts that agree with the page."""

LEAST_TOKENS = 100
"""Tokens of an answer from which this share is used."""


def fault_of(reading: Reading, regions: Sequence[Region], whole: Box) -> str | None:
    """Why a text layer is not trusted, as a clause, or None.

    Args:
        reading: of the text layer.
        regions: of the layout, from the picture; empty if there is none.
        whole: the page.
    """
    if reading.fault is not None:
        return reading.fault
    if not reading.pieces:
        return "the page has no characters"
    on_page = [piece for piece in reading.pieces if whole.holds(piece.box.middle)]
    if len(on_page) * 2 < len(reading.pieces):
        return "most of its characters lie beside the page"
    return _emptiness(on_page, regions)


def _emptiness(pieces: Sequence[Piece], regions: Sequence[Region]) -> str | None:
    """Whether characters are missing where the layout has found text."""
    printed = [region.box for region in regions if region.kind in _PRINTED]
    area = sum(box.area for box in printed)
    if not area:
        return None
    empty = 0.0
    for box in printed:
        if not any(box.holds(piece.box.middle) for piece in pieces):
            empty += box.area
    if empty > (1 - _LEAST_FILLED) * area:
        return f"it has no characters in {empty / area:.0%} of what looks like text"
    return None


def collapsed(used_share: float, num_tokens: int) -> bool:
    """Whether an answer of `num_tokens` took so small a share of drafts that they cannot be of this
    page."""
    return num_tokens >= LEAST_TOKENS and used_share < LEAST_USED
