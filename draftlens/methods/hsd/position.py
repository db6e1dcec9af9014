"""Where an answer stands in the references that it follows."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.methods.hsd.edit_alignment import Alignment
from draftlens.methods.lookup.ngram_index import Source

INSIDE = 1.5
"""Differences that a place inside a token counts as: to go on there, a word is tokenized anew."""

FURTHER = 3
"""Differences by which a place may be worse than the best one."""

LOST = 12
"""Differences from which on an answer is taken to say something else, unless most of it agrees."""


class Position:
    """The place of an answer in the reference that it followed last.

    Attributes:
        source: the reference; None before any was followed, and where the position is lost.
    """

    def __init__(self) -> None:
        self.source: Source | None = None
        self._alignment: Alignment | None = None

    def move_to(self, source: Source, place: int) -> None:
        """The answer stands at a place of a reference."""
        self.source = source
        self._alignment = Alignment(source.symbols, place)

    def advance(self, tokens: Sequence[int], text: str) -> None:
        """What the answer says next, right or not.

        Args:
            tokens: of the answer.
            text: what its text gains by them.
        """
        if self.source is None or self._alignment is None:
            return
        self._alignment.extend(self.source.to_symbols(tokens, text))
        least = self._alignment.least
        if least > LOST and least > self._alignment.said / 2:
            self.source = None
            self._alignment = None

    def places(self, most: int) -> list[tuple[int, int]]:
        """Where the reference may go on, the likeliest place first: pairs of a number of
        differences, 0 where the answer has not left the reference, and a place."""
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
