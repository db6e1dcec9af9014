"""Texts in which the last tokens of an answer are looked up (HSD, equation 4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from draftlens.methods.lookup.text import BREAK, AnswerTail

MOST_MATCHES = 32  # Occurrences of a window in one text that are considered, at most.


@dataclass(frozen=True)
class Vocabulary:
    """Ids that may be proposed: those below `size` that are not excluded (visual tokens)."""

    size: int
    excluded: frozenset[int] = frozenset()

    def with_breaks(self, tokens: Iterable[int]) -> list[int]:
        """The same tokens with `BREAK` in place of each that may not be proposed."""
        return [token if self._has(token) else BREAK for token in tokens]

    def without(self, ids: Iterable[int]) -> Vocabulary:
        return Vocabulary(self.size, self.excluded.union(ids))

    def _has(self, token: int) -> bool:
        return 0 <= token < self.size and token not in self.excluded


class TokenIndex:
    """A growing text, and the ends of all its windows of up to `window` tokens: each token costs
    `window` dictionary entries. `BREAK` replaces tokens that may not be proposed."""

    def __init__(self, window: int, tokens: Iterable[int] = ()) -> None:
        self.window = window
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._run = 0  # tokens since the last break
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            self._run = 0 if token == BREAK else self._run + 1
            end = len(self.tokens)
            for length in range(1, min(self.window, self._run) + 1):
                key = tuple(self.tokens[end - length :])
                self._ends.setdefault(key, []).append(end)

    def ends(self, window: tuple[int, ...]) -> Sequence[int]:
        """Rising indices after each occurrence of a window; the last may be the end of the text."""
        return self._ends.get(window, ())

    def agreement(self, end: int, tail: Sequence[int]) -> int:
        """How many tokens before `end` equal those at the end of `tail`."""
        count = 0
        limit = min(end, len(tail))
        while count < limit and self.tokens[end - 1 - count] == tail[-1 - count] != BREAK:
            count += 1
        return count

    def suffix(self, end: int, length: int) -> list[int]:
        """At most `length` tokens from `end` on, up to the next break."""
        suffix: list[int] = []
        for token in self.tokens[end : end + length]:
            if token == BREAK:
                break
            suffix.append(token)
        return suffix

    def repeated_suffix(self, end: int, length: int) -> list[int]:
        """The suffix, repeated up to `length` tokens if it reaches the end of the text."""
        suffix = self.suffix(end, length)
        if suffix and end + len(suffix) == len(self.tokens):
            period = len(suffix)
            while len(suffix) < length:
                suffix.append(suffix[-period])
        return suffix


@dataclass(frozen=True)
class Continuation:
    """What follows a place of a text; `reaches_end` if that is all that the text has left."""

    tokens: tuple[int, ...]
    reaches_end: bool = False


class TokenSource(ABC):
    """A text that an answer may repeat. Its places are indices of tokens or of characters."""

    cursor: int | None
    """Where the answer is expected to continue: of several matches the first from there on is
    preferred, then the following ones, then those before it, the latest first. None prefers the
    latest match.
    """

    @abstractmethod
    def matches(self, tail: AnswerTail, length: int) -> list[tuple[int, int]]:
        """Pairs of agreement (equal tokens before the place) and place where the last `length`
        tokens occur, the preferred one first."""

    @abstractmethod
    def continuation(self, place: int, length: int, tail: AnswerTail) -> Continuation:
        """At most `length` tokens that follow a place, up to one that may not be proposed."""

    @abstractmethod
    def head(self, separator: str, length: int, tail: AnswerTail) -> Continuation:
        """At most `length` tokens of a separator and the beginning of the text after it; none if
        the separator has no tokens of its own here."""

    def set_cursor(self, place: int | None) -> None:
        self.cursor = place

    @abstractmethod
    def place_after(self, place: int, tokens: Sequence[int], text: str) -> int:
        """The place after tokens of an answer, and their text, that followed a place."""

    @abstractmethod
    def prefix_end(self, tail: AnswerTail, num_tokens: int) -> int:
        """End of the longest prefix of the text that ends the last `num_tokens` tokens, or 0."""

    @property
    @abstractmethod
    def symbols(self) -> Sequence[Hashable]:
        """What the places count: token ids or characters."""

    @abstractmethod
    def to_symbols(self, tokens: Sequence[int], text: str) -> Sequence[Hashable]:
        """Tokens of an answer, and their text, in the symbols of this text."""

    @abstractmethod
    def is_token_start(self, place: int) -> bool: ...

    @abstractmethod
    def is_finished(self, place: int) -> bool:
        """Whether nothing but spaces and punctuation follows a place."""


@dataclass(eq=False)
class Reference(TokenSource):
    """A text of token ids; its places are indices of tokens."""

    index: TokenIndex  # rows may share it
    cursor: int | None = None
    # whether it is the answer itself, which is expected to repeat and has no cursor
    repeats: bool = False
    # whether an answer may end, or continue with another text, where it ends
    is_whole: bool = False

    def matches(self, tail: AnswerTail, length: int) -> list[tuple[int, int]]:
        tokens = tail.tokens
        places = self.places(tuple(tokens[-length:]))
        return [(self.index.agreement(place, tokens), place) for place in places]

    def places(self, window: tuple[int, ...]) -> list[int]:
        """The ends of a window that have a token after them, the preferred one first."""
        ends = self.index.ends(window)
        last = bisect_left(ends, len(self.index.tokens))
        return list(islice(sources_in_order(ends[:last], self.cursor), MOST_MATCHES))

    def continuation(self, place: int, length: int, tail: AnswerTail) -> Continuation:
        if self.repeats:
            return Continuation(tuple(self.index.repeated_suffix(place, length)))
        tokens = self.index.suffix(place, length)
        reaches_end = self.is_whole and place + len(tokens) == len(self.index.tokens)
        return Continuation(tuple(tokens), reaches_end)

    def head(self, separator: str, length: int, tail: AnswerTail) -> Continuation:
        return Continuation(()) if separator else self.continuation(0, length, tail)

    def set_cursor(self, place: int | None) -> None:
        if not self.repeats:
            self.cursor = place

    def place_after(self, place: int, tokens: Sequence[int], text: str) -> int:
        return place + len(tokens)

    def prefix_end(self, tail: AnswerTail, num_tokens: int) -> int:
        tokens = tail.tokens[-num_tokens:] if num_tokens else []
        for length in range(min(len(tokens), len(self.index.tokens)), 0, -1):
            if self.index.tokens[:length] == tokens[-length:]:
                return length
        return 0

    @property
    def symbols(self) -> Sequence[Hashable]:
        return self.index.tokens

    def to_symbols(self, tokens: Sequence[int], text: str) -> Sequence[Hashable]:
        return tokens

    def is_token_start(self, place: int) -> bool:
        return True

    def is_finished(self, place: int) -> bool:
        return place >= len(self.index.tokens)


def sources_in_order(places: Sequence[int], cursor: int | None) -> Iterator[int]:
    """Rising places in the order of preference (`TokenSource.cursor`)."""
    first = len(places) if cursor is None else bisect_left(places, cursor)
    yield from places[first:]
    yield from reversed(places[:first])
