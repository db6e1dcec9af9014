"""Whether a text layer agrees with the printed page, and an answer with the text of its page."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Piece, Reading, Region

_LEAST_FILLED = 0.5
"""Share of the regions with text, by area, in which a text layer must have characters."""

_PRINTED = ("text", "title", "list", "table", "caption")
"""Kinds of regions that hold text."""

LEAST_USED = 0.1
"""Smallest share of an answer's tokens from drafts that agree with the page."""

LEAST_TOKENS = 100
"""Tokens of an answer from which this share is used."""

_GRAM = 6
"""Letters and digits in a row that an answer and the text of its page have in common."""

_LEAST_AGREEMENT = 0.06
"""Smallest share of the shorter text that must occur in the other one. The embedded reader has 12%
to 66% on pages of its generator, and at most 3% on others."""

_LEAST_TEXT = 40
"""Letters and digits of a page from which its text is compared."""

_LONGEST_ANSWER = 4
"""A text this many times shorter than the answer, such as a running head over a scan, is not
compared."""


def fault_of(reading: Reading, regions: Sequence[Region], whole: Box) -> str | None:
    """Why a text layer is not trusted, as a clause, or None. `regions` come from the picture, or
    are empty; `whole` is the page."""
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
    """Whether an answer used so small a share of its drafts that they cannot be of this page."""
    return num_tokens >= LEAST_TOKENS and used_share < LEAST_USED


def disagreement(answer: str, texts: Sequence[str]) -> str | None:
    """Why an answer cannot be the text of a page, as a clause, or None.

    Texts are compared by runs of letters and digits, so that format, line breaks and the order of
    parts do not matter.

    Args:
        texts: of the page, one by each reader; one that agrees is enough.
    """
    answered = _grams(answer)
    shares = []
    for text in texts:
        printed = _grams(text)
        if len(printed) < max(_LEAST_TEXT, len(answered) / _LONGEST_ANSWER):
            return None
        shares.append(len(printed & answered) / max(min(len(printed), len(answered)), 1))
    if not shares or max(shares) >= _LEAST_AGREEMENT:
        return None
    return f"it has {max(shares):.0%} of its text in common with the text of the page"


def _grams(text: str) -> set[str]:
    letters = "".join(character for character in text.casefold() if character.isalnum())
    return {letters[start : start + _GRAM] for start in range(len(letters) - _GRAM + 1)}
