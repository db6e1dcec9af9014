"""The references of one row as regions of a page, of which one follows the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftlens.draft.match_rates import Kind
from draftlens.draft.matching import Candidate, Source
from draftlens.draft.tail import Tail

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


class Regions:
    """Proposes the beginnings of regions that an answer has not said yet, in reading order.

    Args:
        regions: in reading order.
        separators: the token ids of what may stand between two regions, by its text.
        eos: ids that end the answer.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        separators: Mapping[str, Sequence[int]] | None = None,
        eos: Sequence[int] = (),
    ) -> None:
        self.regions = list(regions)
        self._ids = {"": (), **(separators or {})}
        self._separators = list(separators or {"": ()})
        self._eos = eos
        self._latest = -1
        self._form = 0

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
        number = self._number_of(source)
        if number < 0:
            return False
        region = self.regions[number]
        region.followed += symbols
        if len(region.sources) > 1:
            self._form = region.sources.index(source)
        self._latest = number
        return True

    def prefer(self, separator: str) -> None:
        """The answer has put this between two regions."""
        if separator in self._separators:
            self._separators.remove(separator)
            self._separators.insert(0, separator)

    def first(self, loose: str, length: int, tail: Tail) -> Iterator[Candidate]:
        """What an answer may begin with.

        Args:
            loose: what it has said, such as the mark of a title.
            length: tokens of each candidate.
            tail: of the answer.
        """
        separators = [""] if _ends_in_space(loose) else [" ", ""]
        yield from self._heads(separators, length, tail, self.regions)

    def next(
        self, loose: str, length: int, tail: Tail, behind: Source | None = None
    ) -> Iterator[Candidate]:
        """What an answer may say behind a region.

        Args:
            loose: what it has said behind the last letter of the region.
            length: tokens of each candidate.
            tail: of the answer.
            behind: a form of the region; None for the region that the answer followed last.
        """
        rests = [rest.removeprefix(loose) for rest in self._separators if rest.startswith(loose)]
        separators = rests[:MOST_SEPARATORS] or [""]
        yield from self._heads(separators, length, tail, self._unused(behind))
        for token in self._eos:
            yield self._end(token)

    def _heads(
        self, separators: Sequence[str], length: int, tail: Tail, regions: Sequence[Region]
    ) -> Iterator[Candidate]:
        """The beginnings of some regions; the further separators only for the first one."""
        for region in regions[:MOST_HEADS]:
            for separator in separators:
                yield from self._heads_of(region, length, tail, separator)
            separators = separators[:1]

    def _unused(self, behind: Source | None) -> list[Region]:
        """The regions that the answer has not said, those behind a region first."""
        latest = self._latest
        if behind is not None:
            latest = self._number_of(behind)
        order = [*self.regions[latest + 1 :], *self.regions[: max(latest, 0)]]
        return [region for region in order if not region.is_used]

    def _number_of(self, source: Source) -> int:
        for number, region in enumerate(self.regions):
            if source in region.sources:
                return number
        return -1

    def _heads_of(
        self, region: Region, length: int, tail: Tail, separator: str
    ) -> Iterator[Candidate]:
        between = self._ids.get(separator, ())
        source = region.sources[min(self._form, len(region.sources) - 1)]
        guess = source.guess(0, length, tail)
        if guess.tokens:
            tokens = (*between, *guess.tokens)[:length]
            yield Candidate(tokens, 0, source, 0, Kind.HEAD, len(between))

    def _end(self, token: int) -> Candidate:
        """The end of the answer; it lies behind the last region."""
        source = self.regions[-1].sources[0]
        return Candidate((token,), 0, source, len(source.symbols), Kind.HEAD, skipped=1)


def _ends_in_space(text: str) -> bool:
    return not text or text[-1].isspace()
