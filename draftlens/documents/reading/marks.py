"""Marks of the items of lists: bullets, dashes, numbers and letters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

BULLETS = (
    "\u2022\u2023\u25aa\u25cf\u25e6\u2043\u2219\u25cb\u25a0\u25a1\u25c6\u27a2\u2713\uf0b7\uf0a7"
)
DASHES = "*\u2013\u2014-"
"""Marks that also stand in sentences."""

_COUNTED = re.compile(r"^\(?(?:(\d{1,3})|([a-z])|([ivxl]{1,5}))[.)]$", re.IGNORECASE)
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50}


@dataclass
class Marks:
    """The marks of lists on a page: a number is one if it follows the one before it."""

    _last: dict[str, int] = field(default_factory=dict)

    def begins(self, mark: str, at_break: bool) -> bool:
        """Whether the first word of a line begins an item; `at_break`: whether the line before it
        may be the end of one."""
        if mark in BULLETS:
            return True
        if not at_break:
            return False
        if mark in DASHES:
            return True
        for style, value in _values(mark):
            if value in (1, self._last.get(style, 0) + 1):
                self._last[style] = value
                return True
        return False


def _values(mark: str) -> list[tuple[str, int]]:
    """The styles and numbers that a mark may have: `(i)` is the first one or the ninth letter."""
    found = _COUNTED.match(mark)
    if found is None:
        return []
    number, letter, _ = found.groups()
    if number is not None:
        return [(mark.replace(number, "1"), int(number))]
    word = mark.strip("().").lower()
    values = [(mark.replace(letter, "a"), ord(word) - ord("a") + 1)] if letter else []
    if all(character in _ROMAN for character in word):
        digits = [_ROMAN[character] for character in word]
        signed = [-one if one < two else one for one, two in pairwise([*digits, 0])]
        values.append((mark.lower().replace(word, "i"), sum(signed)))
    return values
