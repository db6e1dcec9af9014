"""The references of one row as regions of a page, in reading order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftlens.methods.lookup.candidates import NO_REFERENCE, Candidate, Kind
from draftlens.methods.lookup.ngram_index import TokenSource
from draftlens.methods.lookup.text import AnswerTail, normalize

USED = 0.3  # Share of a region that the answer has followed when the region counts as used.
SEPARATORS = ("\n\n", "\n", " ")  # What may separate two regions of an answer.
MOST_SEPARATORS = 2  # How many of these are tried; the last accepted one comes first.
MOST_HEADS = 2  # Regions that are proposed together, at most.


@dataclass(eq=False)
class ReferenceRegion:
    """One reference."""

    sources: list[TokenSource]  # its variants, the preferred one first
    followed: int = 0  # symbols that the answer has followed

    @property
    def is_used(self) -> bool:
        return self.followed >= USED * max(len(self.sources[0].symbols), 1)


class ReferenceQueue:
    """Proposes the beginnings of regions that are not in the answer yet, in reading order."""

    def __init__(
        self,
        regions: Sequence[ReferenceRegion],
        eos: Sequence[int] = (),
    ) -> None:
        self.regions = list(regions)
        self._separators = list(SEPARATORS)
        self._eos = eos
        self._latest = -1
        self._variant = 0

    @property
    def sources(self) -> list[TokenSource]:
        return [source for region in self.regions for source in region.sources]

    @property
    def is_begun(self) -> bool:
        return self._latest >= 0

    def follow(self, source: TokenSource, symbols: int) -> bool:
        """Count symbols of a reference as followed; false if it is not in the queue."""
        number = self.number_of(source)
        if number < 0:
            return False
        region = self.regions[number]
        region.followed += symbols
        if len(region.sources) > 1:
            self._variant = region.sources.index(source)
        self._latest = number
        return True

    def learn(self, separator: str) -> None:
        """Try this separator first next time, unless it has letters or digits."""
        if normalize(separator):
            return
        if separator in self._separators:
            self._separators.remove(separator)
        self._separators.insert(0, separator)

    def first(self, tail: AnswerTail, num_tokens: int, length: int) -> Iterator[Candidate]:
        """Candidates for the beginning of an answer that has `num_tokens` tokens so far."""
        yield from self._begun(self.regions, tail, num_tokens, length)
        marks = tail.trailing_marks
        separators = [""] if not marks or marks[-1].isspace() else [" ", ""]
        if not num_tokens:
            separators.reverse()
        yield from self._heads(self.regions, separators, tail, length)

    def next(
        self, tail: AnswerTail, num_tokens: int, length: int, after: TokenSource | None = None
    ) -> Iterator[Candidate]:
        """Candidates for what follows a region: that of `after`, by default the one followed last.
        The answer has `num_tokens` tokens after the region."""
        unused = self._unused(after)
        yield from self._begun(unused, tail, num_tokens, length)
        yield from self._heads(unused, self._left(tail, num_tokens), tail, length)
        for token in self._eos:
            yield self._end(token)

    def _left(self, tail: AnswerTail, num_tokens: int) -> list[str]:
        """Separators that may still come before the next region."""
        text = tail.text(num_tokens) if num_tokens else ""
        for begun in (text, space_of(text)):
            rests = [separator for separator in self._separators if separator.startswith(begun)]
            if rests:
                return [separator.removeprefix(begun) for separator in rests[:MOST_SEPARATORS]]
        return [""]

    def _begun(
        self, regions: Sequence[ReferenceRegion], tail: AnswerTail, num_tokens: int, length: int
    ) -> Iterator[Candidate]:
        """Continuations of regions that the end of the answer has begun."""
        for region in regions:
            source = self._preferred(region)
            place = source.prefix_end(tail, num_tokens)
            if place:
                continuation = source.continuation(place, length, tail)
                if continuation.tokens:
                    yield Candidate(
                        continuation.tokens,
                        num_tokens,
                        source,
                        place,
                        Kind.HEAD,
                        reaches_end=continuation.reaches_end,
                    )

    def _heads(
        self,
        regions: Sequence[ReferenceRegion],
        separators: Sequence[str],
        tail: AnswerTail,
        length: int,
    ) -> Iterator[Candidate]:
        """The beginnings of the first regions; further separators only for the first."""
        for region in regions[:MOST_HEADS]:
            source = self._preferred(region)
            for separator in separators:
                continuation = source.head(separator, length, tail)
                if continuation.tokens:
                    start = -len(separator)
                    yield Candidate(
                        continuation.tokens,
                        0,
                        source,
                        start,
                        Kind.HEAD,
                        reaches_end=continuation.reaches_end,
                    )
            separators = separators[:1]

    def _preferred(self, region: ReferenceRegion) -> TokenSource:
        """The variant that the answer used last."""
        return region.sources[min(self._variant, len(region.sources) - 1)]

    def _unused(self, after: TokenSource | None) -> list[ReferenceRegion]:
        """The unused regions, those after `after` first."""
        latest = self._latest
        if after is not None:
            latest = self.number_of(after)
        order = [*self.regions[latest + 1 :], *self.regions[: max(latest, 0)]]
        return [region for region in order if not region.is_used]

    def number_of(self, source: TokenSource | None) -> int:
        for number, region in enumerate(self.regions):
            if source in region.sources:
                return number
        return NO_REFERENCE

    def _end(self, token: int) -> Candidate:
        source = self.regions[-1].sources[0]
        return Candidate((token,), 0, source, len(source.symbols), Kind.HEAD)


def space_of(text: str) -> str:
    return text[len(text.rstrip()) :]
