"""Where an answer continues in a text from which it differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import inf

BAND = 24  # Largest difference in length between text and answer since the start, in symbols.


class Alignment:
    """Edit distances between an answer since it left a text and each prefix of the text from there.

    A rejected draft token may mean a substitution of one or more symbols, an insertion or a
    deletion. Each case is a place at which the text may continue; a smaller distance is likelier.
    Symbols are characters or token ids; `start` is the one at which the answer left the text.
    """

    def __init__(self, symbols: Sequence[Hashable], start: int) -> None:
        self._symbols = symbols
        self._start = min(start, len(symbols))
        self._num_symbols = 0
        after = min(BAND, len(symbols) - self._start)
        self._distances: dict[int, int] = {count: count for count in range(after + 1)}

    @property
    def num_symbols(self) -> int:
        """Symbols of the answer since the start."""
        return self._num_symbols

    @property
    def least(self) -> int:
        return min(self._distances.values())

    def extend(self, symbols: Iterable[Hashable]) -> None:
        for symbol in symbols:
            self._append(symbol)

    def _append(self, symbol: Hashable) -> None:
        self._num_symbols += 1
        first = max(0, self._num_symbols - BAND)
        last = min(len(self._symbols) - self._start, self._num_symbols + BAND)
        before = self._distances
        distances: dict[int, int] = {}
        previous: float = inf
        for count in range(min(first, last), last + 1):
            distance = before.get(count, inf) + 1
            if count:
                differs = difference(self._symbols[self._start + count - 1], symbol)
                distance = min(distance, before.get(count - 1, inf) + differs, previous + 1)
            if distance < inf:
                distances[count] = int(distance)
            previous = distance
        if distances:
            self._distances = distances

    def places(self) -> list[tuple[int, int]]:
        """Edit distances and the places where the text may continue.

        The first places are those that are as far along in the text as the answer is.
        """
        order = sorted(self._distances, key=lambda count: (abs(count - self._num_symbols), count))
        return [(self._distances[count], self._start + count) for count in order]


def difference(one: Hashable, other: Hashable) -> int:
    """0, 1, or 2 (deletion and insertion) between a letter or digit and another character."""
    if one == other:
        return 0
    if isinstance(one, str) and isinstance(other, str) and one.isalnum() != other.isalnum():
        return 2
    return 1
