"""Texts for comparison: letters and digits alone.

Readings of one page differ in spaces, line breaks, punctuation and markup first of all, and the
places of words in them are found without (the authors' code of HSD keeps letters, digits, CJK
characters and kana).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

WALL = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a text for what must not be guessed. It counts as a letter: no window goes over it."""


@lru_cache(maxsize=1 << 16)
def normalize_character(character: str) -> str:
    """The letters and digits of a character: `fi` of a ligature, `e` of an accented one, nothing of
    a space, a soft hyphen, a control character or an accent by itself."""
    if character == WALL:
        return WALL
    decomposed = unicodedata.normalize("NFKD", character)
    return "".join(part for part in decomposed if part.isalnum())


def normalize(text: str) -> str:
    """The letters and digits of a text; case is kept.

    Example:

        >>> normalize("| **ﬁnal** re-sult: 2² |")
        'finalresult22'
    """
    return "".join(map(normalize_character, text))


class NormalizedText:
    """The letters and digits of a text, with the way back to its characters.

    Args:
        text: any.

    Attributes:
        normal: its letters and digits.
    """

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._ends: list[int] = []
        for place, character in enumerate(text, start=1):
            part = normalize_character(character)
            parts.append(part)
            self._ends += [place] * len(part)
        self.text = "".join(parts)

    def end_in_text(self, end: int) -> int | None:
        """Where the characters end whose letters and digits are ``normal[:end]``.

        Returns:
            An index in the text; None if `end` lies inside a character, such as a ligature.
        """
        if end == 0:
            return 0
        place = self._ends[end - 1]
        if end < len(self._ends) and self._ends[end] == place:
            return None
        return place

    def ends(self, window: str) -> Iterator[int]:
        """Where the occurrences of a window end in `normal`, in rising order."""
        return occurrences(self.text, window)

    def is_rest_empty(self, place: int) -> bool:
        """Whether no letter and no digit stands behind a place of the text."""
        return not self._ends or self._ends[-1] <= place


def occurrences(text: str, window: str) -> Iterator[int]:
    """Where the occurrences of a window end in a text, in rising order; overlapping ones count."""
    start = text.find(window)
    while start >= 0:
        yield start + len(window)
        start = text.find(window, start + 1)
