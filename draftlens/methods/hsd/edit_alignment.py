"""Where an answer goes on in a text that it follows with differences."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import inf

BAND = 24
"""How many more or fewer symbols the text may have than the answer since the start."""


class Alignment:
    """The edit distances between what an answer has said since it left a text and each beginning
    of what the text says from there on.

    A token that the target put in place of a continuation may have substituted one symbol of the text or
    several, have been inserted, or stand there because symbols are missing from the answer. Each
    case is a place at which the text may go on, and its distance says how likely the case is.

    Args:
        symbols: the text, as characters or token ids.
        start: the symbol at which the answer left it.
    """

    def __init__(self, symbols: Sequence[Hashable], start: int) -> None:
        self._symbols = symbols
        self._start = min(start, len(symbols))
        self._said = 0
        behind = min(BAND, len(symbols) - self._start)
        self._distances: dict[int, int] = {count: count for count in range(behind + 1)}

    @property
    def said(self) -> int:
        """Symbols of the answer since the start."""
        return self._said

    @property
    def least(self) -> int:
        """The smallest of the distances."""
        return min(self._distances.values())

    def extend(self, symbols: Iterable[Hashable]) -> None:
        """What the answer says next."""
        for symbol in symbols:
            self._append(symbol)

    def _append(self, symbol: Hashable) -> None:
        self._said += 1
        first = max(0, self._said - BAND)
        last = min(len(self._symbols) - self._start, self._said + BAND)
        before = self._distances
        distances: dict[int, int] = {}
        left: float = inf
        for count in range(min(first, last), last + 1):
            distance = before.get(count, inf) + 1
            if count:
                differs = difference(self._symbols[self._start + count - 1], symbol)
                distance = min(distance, before.get(count - 1, inf) + differs, left + 1)
            if distance < inf:
                distances[count] = int(distance)
            left = distance
        if distances:
            self._distances = distances

    def places(self) -> list[tuple[int, int]]:
        """Distance and place of every symbol at which the text may go on, the place first at which
        answer and text have advanced most equally; places of one distance are not sorted
        otherwise."""
        order = sorted(self._distances, key=lambda count: (abs(count - self._said), count))
        return [(self._distances[count], self._start + count) for count in order]


def difference(one: Hashable, other: Hashable) -> int:
    """The distance between two symbols.

    A letter or digit is not put in place of a space or a mark: that is as far as leaving one out
    and inserting the other.
    """
    if one == other:
        return 0
    if isinstance(one, str) and isinstance(other, str) and one.isalnum() != other.isalnum():
        return 2
    return 1
