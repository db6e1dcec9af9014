"""The references of one row as regions of a page, of which one follows the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftlens.methods.lookup.acceptance import Kind
from draftlens.methods.lookup.answer_tail import AnswerTail
from draftlens.methods.lookup.candidates import NO_REFERENCE, Candidate
from draftlens.methods.lookup.ngram_index import Source
from draftlens.methods.lookup.normalized_text import normalize

USED = 0.3
"""Share of a region that an answer has followed when the region counts as used."""

SEPARATORS = ("\n\n", "\n", " ")
"""What may stand between two regions of an answer."""

MOST_SEPARATORS = 2
"""Of these, how many are tried; the one that was right last comes first."""

MOST_HEADS = 2
"""Most regions whose beginnings are proposed together."""


@dataclass(eq=False)
class Region:
    """One reference in the forms in which an answer may repeat it.

    Args:
        sources: its forms, the preferred one first.
        followed: symbols of it that the answer has followed.
    """

    sources: list[Source]
    followed: int = 0

    @property
    def is_used(self) -> bool:
        """Whether the answer has said this region."""
        return self.followed >= USED * max(len(self.sources[0].symbols), 1)


class ReferenceQueue:
    """Proposes the beginnings of regions that an answer has not said yet, in reading order.

    Args:
        regions: in reading order.
        eos: ids that end the answer.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        eos: Sequence[int] = (),
    ) -> None:
        self.regions = list(regions)
        self._separators = list(SEPARATORS)
        self._eos = eos
        self._latest = -1
        self._variant = 0

    @property
    def sources(self) -> list[Source]:
        """All forms of all regions."""
        return [source for region in self.regions for source in region.sources]

    @property
    def is_begun(self) -> bool:
        """Whether the answer has followed a region."""
        return self._latest >= 0

    def follow(self, source: Source, symbols: int) -> bool:
        """The answer has followed symbols of a reference.

        Returns:
            Whether the reference is one of the regions.
        """
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
        """The answer has put this between two regions; it is tried first next time, unless it is a
        text by itself."""
        if normalize(separator):
            return
        if separator in self._separators:
            self._separators.remove(separator)
        self._separators.insert(0, separator)

    def first(self, tail: AnswerTail, said: int, length: int) -> Iterator[Candidate]:
        """What an answer may begin with.

        Args:
            tail: of the answer.
            said: its tokens so far, such as the mark of a title.
            length: tokens of each candidate.
        """
        yield from self._begun(self.regions, tail, said, length)
        marks = tail.trailing_marks
        separators = [""] if not marks or marks[-1].isspace() else [" ", ""]
        if not said:
            separators.reverse()
        yield from self._heads(self.regions, separators, tail, length)

    def next(
        self, tail: AnswerTail, said: int, length: int, behind: Source | None = None
    ) -> Iterator[Candidate]:
        """What an answer may say behind a region.

        Args:
            tail: of the answer.
            said: its tokens behind the region.
            length: tokens of each candidate.
            behind: a form of the region, at the end of which the answer is expected; None for the
                region that it followed last, and at whose end it is.
        """
        unused = self._unused(behind)
        yield from self._begun(unused, tail, said, length)
        yield from self._heads(unused, self._left(tail, said), tail, length)
        for token in self._eos:
            yield self._end(token)

    def _left(self, tail: AnswerTail, said: int) -> list[str]:
        """What may still come in front of the next region."""
        text = tail.text(said) if said else ""
        for begun in (text, space_of(text)):
            rests = [known for known in self._separators if known.startswith(begun)]
            if rests:
                return [known.removeprefix(begun) for known in rests[:MOST_SEPARATORS]]
        return [""]

    def _begun(
        self, regions: Sequence[Region], tail: AnswerTail, said: int, length: int
    ) -> Iterator[Candidate]:
        """What regions go on with of which the answer has said the beginning."""
        for region in regions:
            source = self._preferred(region)
            place = source.prefix_end(tail, said)
            if place:
                continuation = source.continuation(place, length, tail)
                if continuation.tokens:
                    yield Candidate(
                        continuation.tokens,
                        said,
                        source,
                        place,
                        Kind.HEAD,
                        reaches_end=continuation.reaches_end,
                    )

    def _heads(
        self, regions: Sequence[Region], separators: Sequence[str], tail: AnswerTail, length: int
    ) -> Iterator[Candidate]:
        """The beginnings of the first regions; further separators only for the very first one."""
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

    def _preferred(self, region: Region) -> Source:
        """The region in the form that the answer followed last."""
        return region.sources[min(self._variant, len(region.sources) - 1)]

    def _unused(self, behind: Source | None) -> list[Region]:
        """The regions that the answer has not said, those behind a region first."""
        latest = self._latest
        if behind is not None:
            latest = self.number_of(behind)
        order = [*self.regions[latest + 1 :], *self.regions[: max(latest, 0)]]
        return [region for region in order if not region.is_used]

    def number_of(self, source: Source) -> int:
        """The index of the region that a reference is a form of; -1 if it is none."""
        for number, region in enumerate(self.regions):
            if source in region.sources:
                return number
        return NO_REFERENCE

    def _end(self, token: int) -> Candidate:
        """The end of the answer; it lies behind the last region."""
        source = self.regions[-1].sources[0]
        return Candidate((token,), 0, source, len(source.symbols), Kind.HEAD)


def space_of(text: str) -> str:
    """The white space at the end of a text."""
    return text[len(text.rstrip()) :]
