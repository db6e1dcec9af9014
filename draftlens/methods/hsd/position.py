"""The position of an answer in the reference that it follows."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.methods.hsd.edit_alignment import Alignment
from draftlens.methods.lookup.ngram_index import Source

INSIDE = 1.5
"""Cost, in differences, of a place inside a token, where the word is tokenized again."""

FURTHER = 3
"""Largest cost above that of the best place."""

LOST = 12
"""Differences from which on the answer has left the reference, unless most of it agrees."""


class Position:
    """The position of an answer in the reference that it followed last.

    Attributes:
        source: the reference; None before any was followed and after the answer has left it.
    """

    def __init__(self) -> None:
        self.source: Source | None = None
        self._alignment: Alignment | None = None

    def move_to(self, source: Source, place: int) -> None:
        self.source = source
        self._alignment = Alignment(source.symbols, place)

    def advance(self, tokens: Sequence[int], text: str) -> None:
        """Align further tokens of the answer, and the text that they add, with the reference."""
        if self.source is None or self._alignment is None:
            return
        self._alignment.extend(self.source.to_symbols(tokens, text))
        least = self._alignment.least
        if least > LOST and least > self._alignment.num_symbols / 2:
            self.source = None
            self._alignment = None

    def places(self, most: int) -> list[tuple[int, int]]:
        """Where the reference may continue, the likeliest first: pairs of a number of differences
        (0 if the answer has not left the reference) and a place."""
        if self.source is None or self._alignment is None:
            return []
        ranked = [
            (distance + (0 if self.source.is_token_start(place) else INSIDE), distance, place)
            for distance, place in self._alignment.places()
        ]
        ranked.sort(key=lambda costs: costs[0])  # stable
        worst = ranked[0][0] + FURTHER
        return [(distance, place) for cost, distance, place in ranked[:most] if cost <= worst]

    @property
    def place(self) -> int | None:
        """The likeliest place; None without a reference."""
        places = self.places(1)
        return places[0][1] if places else None

    @property
    def is_at_the_end(self) -> bool:
        """Whether the answer has followed a reference to its end."""
        place = self.place
        return self.source is not None and place is not None and self.source.is_finished(place)
