"""Texts reduced to letters and digits, by which words are found whatever the spaces, punctuation
and markup (as in the authors' code of HSD)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

WALL = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a text for a token that may not be proposed. It counts as a letter, so no window
crosses it."""


@lru_cache(maxsize=1 << 16)
def normalize_character(character: str) -> str:
    """The letters and digits of a character: `fi` of a ligature, `e` of an accented one, "" of a
    space, soft hyphen or accent."""
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
    """The letters and digits of a text (`text`), with the way back to its characters."""

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._ends: list[int] = []
        for place, character in enumerate(text, start=1):
            part = normalize_character(character)
            parts.append(part)
            self._ends += [place] * len(part)
        self.text = "".join(parts)

    def end_in_text(self, end: int) -> int | None:
        """Index in the original after the characters of ``text[:end]``; None inside a character,
        such as a ligature."""
        if end == 0:
            return 0
        place = self._ends[end - 1]
        if end < len(self._ends) and self._ends[end] == place:
            return None
        return place

    def ends(self, window: str) -> Iterator[int]:
        return occurrences(self.text, window)

    def is_rest_empty(self, place: int) -> bool:
        """Whether no letter and no digit follows a place of the original."""
        return not self._ends or self._ends[-1] <= place


def occurrences(text: str, window: str) -> Iterator[int]:
    """Where the occurrences of a window end in a text, rising; overlapping ones count."""
    start = text.find(window)
    while start >= 0:
        yield start + len(window)
        start = text.find(window, start + 1)
