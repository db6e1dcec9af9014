"""Guesses for an answer that says again, in another form, what its references say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from draftlens.methods.hsd.position import Trail
from draftlens.methods.hsd.reference_queue import Regions
from draftlens.methods.lookup.acceptance import Kind
from draftlens.methods.lookup.candidates import (
    Candidate,
    Landing,
    Matcher,
    distinct,
    longest_right,
)
from draftlens.methods.lookup.ngram_index import Source
from draftlens.methods.lookup.text_tokens import PieceDecoder, joined

MOST_RECOVERIES = 3
"""Most places at which a reference is taken to go on behind a wrong guess."""

FIRST_RECOVERIES = 2
"""Of these, how many come before matches of short windows."""

LONGEST_BETWEEN = 24
"""Most tokens between two references."""

ON_TRACK = 4
"""Tokens of a match that a place is worth which the answer has not left."""


class DocumentMatcher(Matcher):
    """Looks up an answer in texts, and expects it to follow them from place to place.

    Besides the matches of a `Matcher` it knows where the answer stands in the reference that it
    followed last (`Trail`), and which references it has not said yet (`Regions`).

    Args:
        regions: the references.
        sources: texts besides them and the answer that are only looked up, such as the prompt.
        recovery: whether continuations are proposed, behind a wrong guess, as if symbols of the
            reference had been substituted, inserted or left out.
        heads: whether, at the beginning of the answer and behind a reference, the beginnings of
            references that it has not said are proposed, and its end.
        window, context, decoder: as for `Matcher`. The window does not grow.
    """

    def __init__(
        self,
        regions: Regions,
        sources: Sequence[Source] = (),
        recovery: bool = True,
        heads: bool = True,
        window: int = 3,
        context: Sequence[int] = (),
        decoder: PieceDecoder | None = None,
    ) -> None:
        references = [*regions.sources, *sources]
        super().__init__(references, window, context, window, decoder)
        self.regions = regions
        self.recovery = recovery
        self.heads = heads
        self.trail = Trail()
        self._between = 0  # tokens of the answer that the trail does not explain
        self._said = ""  # their text, in front of the candidates

    def number_of(self, source: Source) -> int:
        """See `Matcher.number_of`."""
        return self.regions.number_of(source)

    def candidates(self, most: int, length: int) -> list[Candidate]:
        """See `Matcher.candidates`.

        The place comes first at which the answer stands as long as it has not left its reference.
        Then come matches of a whole window, places that the trail leads to, the heads of
        references, and matches of shorter windows, which are mostly accidents.
        """
        self._said = self.tail.text(self._between) if self._between else ""
        matches = self._matches()
        # The end of the prompt says little about an answer that has not begun.
        needed = min(self.window, len(self.answer.tokens) or self.window)
        recovered = list(self._recovered(length))
        ordered = chain(
            (candidate for candidate in recovered if candidate.agreement == ON_TRACK),
            self._guessed((match for match in matches if match[0] >= needed), length),
            recovered[:FIRST_RECOVERIES],
            self._heads(length),
            self._guessed((match for match in matches if match[0] < needed), length),
            recovered,
        )
        self._candidates = list(self._over_the_end(distinct(ordered, most), length))
        return list(self._candidates)

    def _recovered(self, length: int) -> Iterator[Candidate]:
        source = self.trail.source
        if source is None or not self.recovery:
            return
        for distance, place in self.trail.places(MOST_RECOVERIES):
            guess = source.guess(place, length, self.tail)
            if guess.tokens:
                agreement = 0 if distance else ON_TRACK
                yield Candidate(
                    guess.tokens, agreement, source, place, Kind.RECOVERY, is_rest=guess.is_rest
                )

    def _heads(self, length: int) -> Iterator[Candidate]:
        """What follows where the answer stands between two references."""
        if not self.heads or not self.regions.regions or self._between > LONGEST_BETWEEN:
            return
        if not self.regions.is_begun:
            yield from self.regions.first(self.tail, self._between, length)
        elif self.trail.is_at_the_end:
            yield from self.regions.next(self.tail, self._between, length)

    def _over_the_end(self, candidates: Sequence[Candidate], length: int) -> Iterator[Candidate]:
        """The candidates; if the first one ends where its reference ends, it goes on with what may
        follow there."""
        for rank, candidate in enumerate(candidates):
            left = length - len(candidate.tokens)
            is_open = candidate.is_rest and left > 0 and bool(self.regions.regions)
            if rank == 0 and is_open and self.heads:
                for head in self.regions.next(self.tail, 0, left, candidate.reference):
                    yield replace(candidate, tokens=candidate.tokens + head.tokens, head=head)
            yield candidate

    def _follow(self, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        candidate, accepted = longest_right(self._candidates, tokens)
        if candidate is not None and self._is_sure(candidate, accepted):
            landing = candidate.landing(pieces, accepted)
            if landing is not None and self._land(landing):
                tokens = tokens[accepted:]
                pieces = pieces[accepted:]
        self._between += len(tokens)
        self.trail.go_on(tokens, joined(pieces))
        if self.trail.source is not None:
            self.trail.source.expect(self.trail.place)

    def _is_sure(self, candidate: Candidate, accepted: int) -> bool:
        """Whether a candidate was right for so long that it was no accident."""
        known = 0 if candidate.kind == Kind.MATCH else self.window
        return known + candidate.agreement + accepted > self.window

    def _land(self, landing: Landing) -> bool:
        """Let the answer stand at a place of a reference; false if it is no region."""
        landing.source.expect(landing.place)
        was_begun = self.regions.is_begun
        if not self.regions.follow(landing.source, landing.place - landing.start):
            return False
        if was_begun and landing.start == 0:
            self.regions.learn(self._said + landing.between)
        self.trail.land(landing.source, landing.place)
        self._between = 0
        return True
