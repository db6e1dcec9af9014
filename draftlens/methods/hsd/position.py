"""The position of an answer in the reference that it follows."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.methods.hsd.edit_alignment import Alignment
from draftlens.methods.lookup.ngram_index import TokenSource

INSIDE = 1.5  # Cost, in differences, of a place inside a token, where the word is tokenized again.
FURTHER = 3  # Largest cost above that of the best place.
LOST = 12  # Differences from which the answer has left the reference, unless most symbols agree.


class Position:
    """The position of an answer in the reference that it followed last."""

    def __init__(self) -> None:
        # None before the first reference and after the answer has left it
        self.source: TokenSource | None = None
        self._alignment: Alignment | None = None

    def move_to(self, source: TokenSource, place: int) -> None:
        self.source = source
        self._alignment = Alignment(source.symbols, place)

    def advance(self, tokens: Sequence[int], text: str) -> None:
        """Align further tokens of the answer, and their text, with the reference."""
        if self.source is None or self._alignment is None:
            return
        self._alignment.extend(self.source.to_symbols(tokens, text))
        distance = self._alignment.least
        if distance > LOST and distance > self._alignment.num_symbols / 2:
            self.source = None
            self._alignment = None

    def places(self, most: int) -> list[tuple[int, int]]:
        """Differences (0: the answer has not left the reference) and places, likeliest first."""
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
        place = self.place
        return self.source is not None and place is not None and self.source.is_finished(place)
