"""Candidates for an answer that repeats its references in another form or order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from draftlens.methods.hsd.position import Position
from draftlens.methods.hsd.reference_queue import ReferenceQueue
from draftlens.methods.lookup.candidates import (
    Advance,
    Candidate,
    Kind,
    Matcher,
    distinct,
    longest_correct,
)
from draftlens.methods.lookup.ngram_index import TokenSource
from draftlens.methods.lookup.text_tokens import PieceDecoder, joined_text

# Places at which a reference is continued after a rejected draft token, at most.
MOST_RECOVERIES = 3

FIRST_RECOVERIES = 2  # How many of these precede the matches of short windows.
LONGEST_BETWEEN = 24  # Most tokens between two references.
FOLLOWED_AGREEMENT = 4  # Agreement of a place that the answer has not left, in tokens.


class DocumentMatcher(Matcher):
    """Finds matches as `Matcher` does, and follows the answer through its references.

    It also proposes continuations at the `Position` of the answer in the reference that it followed
    last, and the beginnings of the next references (`ReferenceQueue`).

    Args:
        queue: the references.
        sources: further texts that are only searched, such as the prompt.
        recovery, heads, window: as for `HSD`; the window does not grow.
        context, decoder: as for `Matcher`.
    """

    def __init__(
        self,
        queue: ReferenceQueue,
        sources: Sequence[TokenSource] = (),
        recovery: bool = True,
        heads: bool = True,
        window: int = 3,
        context: Sequence[int] = (),
        decoder: PieceDecoder | None = None,
    ) -> None:
        references = [*queue.sources, *sources]
        super().__init__(references, window, context, window, decoder)
        self.queue = queue
        self.recovery = recovery
        self.heads = heads
        self.position = Position()
        self._unmatched = 0  # tokens of the answer that the position does not explain
        self._unmatched_text = ""  # their text, in front of the candidates

    def number_of(self, source: TokenSource) -> int:
        return self.queue.number_of(source)

    def candidates(self, most: int, length: int) -> list[Candidate]:
        """The place that the answer has not left comes first, then matches of a whole window, other
        places of the position, heads, and matches of shorter windows, which are mostly accidental.
        """
        self._unmatched_text = self.tail.text(self._unmatched) if self._unmatched else ""
        matches = self._matches()
        # The end of the prompt is weak evidence for an answer that has not begun.
        needed = min(self.window, len(self.answer.tokens) or self.window)
        recovered = list(self._recovered(length))
        ordered = chain(
            (candidate for candidate in recovered if candidate.agreement == FOLLOWED_AGREEMENT),
            self._continuations((match for match in matches if match[0] >= needed), length),
            recovered[:FIRST_RECOVERIES],
            self._heads(length),
            self._continuations((match for match in matches if match[0] < needed), length),
            recovered,
        )
        self._candidates = list(self._extended(distinct(ordered, most), length))
        return list(self._candidates)

    def _recovered(self, length: int) -> Iterator[Candidate]:
        source = self.position.source
        if source is None or not self.recovery:
            return
        for distance, place in self.position.places(MOST_RECOVERIES):
            continuation = source.continuation(place, length, self.tail)
            if continuation.tokens:
                agreement = 0 if distance else FOLLOWED_AGREEMENT
                yield Candidate(
                    continuation.tokens,
                    agreement,
                    source,
                    place,
                    Kind.RECOVERY,
                    reaches_end=continuation.reaches_end,
                )

    def _heads(self, length: int) -> Iterator[Candidate]:
        if not self.heads or not self.queue.regions or self._unmatched > LONGEST_BETWEEN:
            return
        if not self.queue.is_begun:
            yield from self.queue.first(self.tail, self._unmatched, length)
        elif self.position.is_at_the_end:
            yield from self.queue.next(self.tail, self._unmatched, length)

    def _extended(self, candidates: Sequence[Candidate], length: int) -> Iterator[Candidate]:
        """The candidates; one that ends its reference is extended by what may follow there."""
        for rank, candidate in enumerate(candidates):
            remaining = length - len(candidate.tokens)
            is_open = candidate.reaches_end and remaining > 0 and bool(self.queue.regions)
            if rank == 0 and is_open and self.heads:
                for head in self.queue.next(self.tail, 0, remaining, candidate.reference):
                    yield replace(candidate, tokens=candidate.tokens + head.tokens, head=head)
            yield candidate

    def _follow(self, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        candidate, accepted = longest_correct(self._candidates, tokens)
        if candidate is not None and self._is_sure(candidate, accepted):
            step = candidate.advance(pieces, accepted)
            if step is not None and self._follow_to(step):
                tokens = tokens[accepted:]
                pieces = pieces[accepted:]
        self._unmatched += len(tokens)
        self.position.advance(tokens, joined_text(pieces))
        if self.position.source is not None:
            self.position.source.set_cursor(self.position.place)

    def _is_sure(self, candidate: Candidate, accepted: int) -> bool:
        """Whether the agreement is too long to be accidental."""
        base_length = 0 if candidate.kind == Kind.MATCH else self.window
        return base_length + candidate.agreement + accepted > self.window

    def _follow_to(self, step: Advance) -> bool:
        """Move to a place of a reference; false if it is not in the queue."""
        step.source.set_cursor(step.place)
        was_begun = self.queue.is_begun
        if not self.queue.follow(step.source, step.place - step.start):
            return False
        if was_begun and step.start == 0:
            self.queue.learn(self._unmatched_text + step.between)
        self.position.move_to(step.source, step.place)
        self._unmatched = 0
        return True
