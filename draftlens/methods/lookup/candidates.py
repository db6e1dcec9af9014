"""Windowed alignment: where the last tokens of an answer occur in other texts, and what follows
there (HSD, equations 4 and 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from draftlens.methods.lookup.acceptance import Evidence, Kind
from draftlens.methods.lookup.answer_tail import AnswerTail
from draftlens.methods.lookup.ngram_index import Reference, Source, TokenIndex
from draftlens.methods.lookup.prefix_tree import PrefixTree, merge
from draftlens.methods.lookup.text_tokens import PieceDecoder, joined

LONGEST_WINDOW = 16
"""Tokens up to which a window grows to tell several matches apart, by default."""


NO_REFERENCE = -1
"""Stands for texts that are no reference of the caller: the prompt, and the answer itself."""


@dataclass(frozen=True)
class Candidate:
    """What may come next.

    Args:
        tokens: at least one.
        agreement: how many tokens in front of it are the last ones of the answer, as far as they
            were compared.
        reference: the text that it comes from.
        end: where it begins there. Below 0 if the head of a text begins with what stands between
            two texts.
        kind: why it is proposed.
        reaches_end: whether its text ends with it.
        head: what follows behind the end of the text; its tokens are the last ones of `tokens`.
    """

    tokens: tuple[int, ...]
    agreement: int
    reference: Source = field(repr=False)
    end: int
    kind: Kind = Kind.MATCH
    reaches_end: bool = False
    head: Candidate | None = None

    @property
    def evidence(self) -> Evidence:
        """What the chances of its tokens depend on."""
        if self.head is None:
            return Evidence(self.agreement, self.kind)
        return Evidence(self.agreement, self.kind, len(self.tokens) - len(self.head.tokens))

    def reference_at(self, depth: int) -> Source:
        """The text that the token behind `depth` other ones comes from."""
        if self.head is None:
            return self.reference
        boundary = len(self.tokens) - len(self.head.tokens)
        if depth < boundary:
            return self.reference
        return self.head.reference_at(depth - boundary)

    def advance(self, pieces: Sequence[str], accepted: int) -> Advance | None:
        """Where the answer stands in a reference behind tokens that were right.

        Args:
            pieces: what the text of the answer gained by each of them.
            accepted: how many of the tokens were right.

        Returns:
            None if none of them comes from a reference.
        """
        if self.head is not None:
            boundary = len(self.tokens) - len(self.head.tokens)
            step = self.head.advance(pieces[boundary:], accepted - boundary)
            if step is not None:
                return step
            accepted = min(accepted, boundary)
        text = joined(pieces[: max(accepted, 0)])
        place = self.reference.place_after(self.end, self.tokens[: max(accepted, 0)], text)
        if accepted <= 0 or place <= 0:
            return None
        return Advance(self.reference, max(self.end, 0), place, text[: max(-self.end, 0)])


@dataclass(frozen=True)
class Advance:
    """Where an answer stands in a reference behind tokens that were right.

    Args:
        source: the reference.
        start: the place where these tokens begin in it.
        place: the place behind them.
        between: which of these tokens' text stands in front of the reference.
    """

    source: Source
    start: int
    place: int
    between: str = ""


class Matcher:
    """Looks up the last tokens of one growing answer in texts and in the answer itself.

    Windows of `window` tokens are looked up; where none matches, shorter ones down to a single
    token. Of several matches those are preferred that agree with the answer over more tokens, which
    is a window that grows while matches are ambiguous; then the one that continues where the last
    continuation was right; then by the order of the references and their cursors.

    Args:
        references: texts besides the answer, the preferred ones first.
        window: n, tokens of the longest window that is looked up.
        context: tokens in front of the answer, such as the prompt: a window at the beginning of the
            answer reaches into them.
        longest_window: tokens up to which a window grows; `window` for never.
        decoder: decodes the answer, for references that compare texts; None for nobody.

    Attributes:
        answer: the index of the answer.
        references: as given, behind the answer itself.
        tail: the last tokens.
    """

    def __init__(
        self,
        references: Iterable[Source] = (),
        window: int = 3,
        context: Sequence[int] = (),
        longest_window: int = LONGEST_WINDOW,
        decoder: PieceDecoder | None = None,
    ) -> None:
        self.window = window
        self.answer = TokenIndex(window)
        self.references: list[Source] = [Reference(self.answer, repeats=True), *references]
        self.tail = AnswerTail(max(longest_window, window), decoder)
        self.tail.extend(context[-self.tail.size :])
        self._candidates: list[Candidate] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Append emitted tokens to the answer, with `BREAK` for those that must not be guessed."""
        tokens = list(tokens)
        pieces = self.tail.extend(tokens)
        self._follow(tokens, pieces)
        self.answer.extend(tokens)
        self._candidates = []

    def number_of(self, source: Source) -> int:
        """The index of the caller's reference that a text is a form of; -1 if it is none."""
        return NO_REFERENCE

    def candidates(self, most: int, length: int) -> list[Candidate]:
        """What may come next, the preferred candidate first; none of them is the beginning of one
        before it.

        Args:
            most: candidates.
            length: tokens of each.
        """
        self._candidates = distinct(self._continuations(self._matches(), length), most)
        return list(self._candidates)

    def tree(self, most: int, length: int, max_nodes: int) -> tuple[PrefixTree, list[Candidate]]:
        """The candidates merged into one tree of at most `max_nodes` nodes, and the candidates that
        its `origins` count."""
        candidates = self.candidates(most, length)
        return merge([candidate.tokens for candidate in candidates], max_nodes), candidates

    def _continuations(
        self, matches: Iterable[tuple[int, Source, int]], length: int
    ) -> Iterator[Candidate]:
        """What follows matches, as far as anything does."""
        for agreement, reference, place in matches:
            continuation = reference.continuation(place, length, self.tail)
            if continuation.tokens:
                yield Candidate(
                    continuation.tokens,
                    agreement,
                    reference,
                    place,
                    reaches_end=continuation.reaches_end,
                )

    def _matches(self) -> list[tuple[int, Source, int]]:
        """Agreement, text and place of each match, the preferred one first."""
        for length in range(min(self.window, len(self.tail)), 0, -1):
            found = [
                (agreement, reference, place)
                for reference in self.references
                for agreement, place in reference.matches(self.tail, length)
            ]
            if found:
                return sorted(found, key=_preference)  # stable
        return []

    def _follow(self, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        """Expect the answer to go on behind the candidate that was right for longest."""
        candidate, accepted = longest_correct(self._candidates, tokens)
        if candidate is not None:
            step = candidate.advance(pieces, accepted)
            if step is not None:
                step.source.set_cursor(step.place)


def distinct(candidates: Iterable[Candidate], most: int) -> list[Candidate]:
    """The first candidates, without those that are the beginning of an earlier one."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if len(kept) >= most:
            break
        count = len(candidate.tokens)
        if not any(known.tokens[:count] == candidate.tokens for known in kept):
            kept.append(candidate)
    return kept


def longest_correct(
    candidates: Iterable[Candidate], tokens: Sequence[int]
) -> tuple[Candidate | None, int]:
    """The candidate that was right for longest, and for how many tokens; None if none was."""
    best = None
    longest = 0
    for candidate in candidates:
        accepted = _common(candidate.tokens, tokens)
        if accepted > longest:
            best = candidate
            longest = accepted
    return best, longest


def _preference(match: tuple[int, Source, int]) -> tuple[int, bool]:
    agreement, reference, place = match
    return -agreement, place != reference.cursor


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens of the common beginning."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
