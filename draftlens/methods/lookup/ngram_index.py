"""Texts in which the last tokens of an answer are looked up (HSD, equation 4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from draftlens.methods.lookup.answer_tail import BREAK, AnswerTail

MOST_MATCHES = 32
"""Most occurrences of a window in one text that are looked at."""


@dataclass(frozen=True)
class Vocabulary:
    """Which ids may be guessed.

    Args:
        size: ids from this one on do not exist.
        excluded: ids that stand for pixels.
    """

    size: int
    excluded: frozenset[int] = frozenset()

    def with_breaks(self, tokens: Iterable[int]) -> list[int]:
        """The same tokens with a `BREAK` in the place of each that must not be guessed."""
        return [token if self._has(token) else BREAK for token in tokens]

    def without(self, ids: Iterable[int]) -> Vocabulary:
        """The same without further ids."""
        return Vocabulary(self.size, self.excluded.union(ids))

    def _has(self, token: int) -> bool:
        return 0 <= token < self.size and token not in self.excluded


class TokenIndex:
    """A text that may grow, and the places of all its windows of up to `window` tokens.

    Each further token costs `window` entries of a dictionary.

    Args:
        window: largest length of a window.
        tokens: ids, with `BREAK` for those that must not be guessed.

    Attributes:
        tokens: the text so far.
    """

    def __init__(self, window: int, tokens: Iterable[int] = ()) -> None:
        self.window = window
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._run = 0  # tokens since the last break
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self.tokens.append(token)
            self._run = 0 if token == BREAK else self._run + 1
            end = len(self.tokens)
            for length in range(1, min(self.window, self._run) + 1):
                key = tuple(self.tokens[end - length :])
                self._ends.setdefault(key, []).append(end)

    def ends(self, window: tuple[int, ...]) -> Sequence[int]:
        """Where a window of at most `window` tokens ends: indices of the tokens behind it, in
        rising order. The last of them may be the end of the text."""
        return self._ends.get(window, ())

    def agreement(self, end: int, tail: Sequence[int]) -> int:
        """How many tokens in front of `end` are those at the end of `tail`."""
        count = 0
        most = min(end, len(tail))
        while count < most and self.tokens[end - 1 - count] == tail[-1 - count] != BREAK:
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
        """The same, and behind the end of the text what would follow if the text went on with this
        suffix: a text that repeats itself every three tokens goes on to do so."""
        suffix = self.suffix(end, length)
        if suffix and end + len(suffix) == len(self.tokens):
            period = len(suffix)
            while len(suffix) < length:
                suffix.append(suffix[-period])
        return suffix


@dataclass(frozen=True)
class Continuation:
    """What follows a place of a text.

    Args:
        tokens: may be none.
        reaches_end: whether they are all that the text has left.
    """

    tokens: tuple[int, ...]
    reaches_end: bool = False


class Source(Protocol):
    """A text that an answer may repeat. Its places are indices of tokens or of characters."""

    cursor: int | None
    """Where the answer is expected to go on: of several matches the first one from there on is
    preferred, then the following ones, then those before it, the latest first. None if nothing is
    expected: then the latest match is preferred."""

    def matches(self, tail: AnswerTail, length: int) -> list[tuple[int, int]]:
        """Where the last `length` tokens of an answer occur: pairs of an agreement (how many tokens
        in front of the place are the last ones of the answer) and a place, the preferred one
        first."""
        ...

    def continuation(self, place: int, length: int, tail: AnswerTail) -> Continuation:
        """At most `length` tokens that follow a place, up to one that must not be guessed."""
        ...

    def head(self, separator: str, length: int, tail: AnswerTail) -> Continuation:
        """At most `length` tokens of a separator and the beginning of the text behind it; none if
        the separator has no tokens of its own here."""
        ...

    def set_cursor(self, place: int | None) -> None:
        """Set the cursor, if the text has one."""
        ...

    def place_after(self, place: int, tokens: Sequence[int], text: str) -> int:
        """The place behind tokens of an answer, and their text, that followed a place."""
        ...

    def prefix_end(self, tail: AnswerTail, said: int) -> int:
        """The place behind the longest beginning of this text with which the last `said` tokens
        end; 0 for none."""
        ...

    @property
    def symbols(self) -> Sequence[Hashable]:
        """What the places count: token ids or characters."""
        ...

    def to_symbols(self, tokens: Sequence[int], text: str) -> Sequence[Hashable]:
        """Tokens of an answer, and their text, in the symbols of this text."""
        ...

    def is_token_start(self, place: int) -> bool:
        """Whether a token of the text begins at a place."""
        ...

    def is_finished(self, place: int) -> bool:
        """Whether nothing but spaces and punctuation follows a place."""
        ...


@dataclass(eq=False)
class Reference:
    """A text of token ids; its places are indices of tokens.

    Args:
        index: of the text. Several rows may share it.
        cursor: see `Source.cursor`.
        repeats: whether it is the answer itself, which is expected to go on with a repetition and
            never to be followed from a cursor.
        is_whole: whether an answer is expected to end, or to go on with another text, where this
            text ends.
    """

    index: TokenIndex
    cursor: int | None = None
    repeats: bool = False
    is_whole: bool = False

    def matches(self, tail: AnswerTail, length: int) -> list[tuple[int, int]]:
        """See `Source.matches`."""
        tokens = tail.tokens
        places = self.places(tuple(tokens[-length:]))
        return [(self.index.agreement(place, tokens), place) for place in places]

    def places(self, window: tuple[int, ...]) -> list[int]:
        """The ends of a window that have a token behind them, the preferred one first."""
        ends = self.index.ends(window)
        last = bisect_left(ends, len(self.index.tokens))
        return list(islice(in_order(ends[:last], self.cursor), MOST_MATCHES))

    def continuation(self, place: int, length: int, tail: AnswerTail) -> Continuation:
        """See `Source.continuation`."""
        if self.repeats:
            return Continuation(tuple(self.index.repeated_suffix(place, length)))
        tokens = self.index.suffix(place, length)
        reaches_end = self.is_whole and place + len(tokens) == len(self.index.tokens)
        return Continuation(tuple(tokens), reaches_end)

    def head(self, separator: str, length: int, tail: AnswerTail) -> Continuation:
        """See `Source.head`. Token ids have no separator but none."""
        return Continuation(()) if separator else self.continuation(0, length, tail)

    def set_cursor(self, place: int | None) -> None:
        """See `Source.expect`. What an answer repeats of itself is what it said last."""
        if not self.repeats:
            self.cursor = place

    def place_after(self, place: int, tokens: Sequence[int], text: str) -> int:
        """See `Source.advanced`."""
        return place + len(tokens)

    def prefix_end(self, tail: AnswerTail, said: int) -> int:
        """See `Source.beginning`."""
        tokens = tail.tokens[-said:] if said else []
        for length in range(min(len(tokens), len(self.index.tokens)), 0, -1):
            if self.index.tokens[:length] == tokens[-length:]:
                return length
        return 0

    @property
    def symbols(self) -> Sequence[Hashable]:
        """See `Source.symbols`."""
        return self.index.tokens

    def to_symbols(self, tokens: Sequence[int], text: str) -> Sequence[Hashable]:
        """See `Source.said`."""
        return tokens

    def is_token_start(self, place: int) -> bool:
        """See `Source.is_token_start`."""
        return True

    def is_finished(self, place: int) -> bool:
        """See `Source.is_finished`."""
        return place >= len(self.index.tokens)


def in_order(places: Sequence[int], cursor: int | None) -> Iterator[int]:
    """Places in the order of preference (see `Source.cursor`).

    Args:
        places: in rising order.
        cursor: of the source.
    """
    first = len(places) if cursor is None else bisect_left(places, cursor)
    yield from places[first:]
    yield from reversed(places[:first])
