"""Where an answer continues in a text from which it differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from operator import itemgetter

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
from draftlens.methods.lookup.text import PieceDecoder, joined_text

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


# Places at which a reference is continued after a rejected draft token, at most.
MOST_RECOVERIES = 3

FIRST_RECOVERIES = 2  # How many of these precede the matches of short windows.
LONGEST_BETWEEN = 24  # Most tokens between two references.
FOLLOWED_AGREEMENT = 4  # Agreement of a place that the answer has not left, in tokens.


# The order of candidates: the place that the answer has not left, matches of a whole window, the
# likeliest other places of the position, heads, matches of shorter windows, which are mostly
# accidental, and further places.
FOLLOWED, WINDOW, LIKELY_PLACE, HEAD, SHORT_WINDOW, FURTHER_PLACE = range(6)


def _rank_of_place(number: int, candidate: Candidate) -> int:
    if candidate.agreement == FOLLOWED_AGREEMENT:
        return FOLLOWED
    return LIKELY_PLACE if number < FIRST_RECOVERIES else FURTHER_PLACE


class DocumentMatcher(Matcher):
    """Finds matches as `Matcher` does, and follows the answer through its references.

    It also proposes continuations at the `Position` of the answer in the reference that it followed
    last, and the beginnings of the next references (`ReferenceQueue`).

    Args:
        queue: the references.
        sources: further texts that are only searched, such as the prompt.
        recovery, heads, window: as for `HSD`; the window does not grow.
        context, decoder: as for `Matcher`.
        chains: whether one text at most may follow the end of a reference.
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
        chains: bool = False,
    ) -> None:
        references = [*queue.sources, *sources]
        super().__init__(references, window, context, window, decoder)
        self.queue = queue
        self.recovery = recovery
        self.heads = heads
        self.chains = chains
        self.position = Position()
        self._unmatched = 0  # tokens of the answer that the position does not explain
        self._unmatched_text = ""  # their text, in front of the candidates

    def number_of(self, source: TokenSource | None) -> int:
        return self.queue.number_of(source)

    def candidates(self, most: int, length: int) -> list[Candidate]:
        """At most `most` candidates by rank, the first one also with what may follow its end."""
        self._unmatched_text = self.tail.text(self._unmatched) if self._unmatched else ""
        # The end of the prompt is weak evidence for an answer that has not begun.
        needed = min(self.window, len(self.answer.tokens) or self.window)
        ranked = [
            (WINDOW if match[0] >= needed else SHORT_WINDOW, self._continuations([match], length))
            for match in self._matches()
        ]
        ranked += [
            (_rank_of_place(number, candidate), iter([candidate]))
            for number, candidate in enumerate(self._recovered(length))
        ]
        ranked.append((HEAD, self._heads(length)))
        ranked.sort(key=itemgetter(0))  # stable
        # Generators are read only as far as candidates are needed: continuations and heads cost.
        ordered = chain.from_iterable(candidates for _, candidates in ranked)
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
                heads = self.queue.next(self.tail, 0, remaining, candidate.reference)
                for head in islice(heads, 1) if self.chains else heads:
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
