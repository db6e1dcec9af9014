"""The last tokens of an answer, as ids and as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import TypeVar

from draftlens.methods.lookup.normalized_text import normalize, normalize_character
from draftlens.methods.lookup.text_tokens import PieceDecoder, joined_text

BREAK = -1  # Replaces a token that may not be proposed. No window and no candidate crosses it.

Value = TypeVar("Value")

LONGEST_TEXT = 64  # Tokens of an answer that are kept with their text.
LONGEST_WORD = 32  # Characters of a word that are used.


class AnswerTail:
    """The last tokens of an answer: `size` ids are compared; `decoder` gives their text."""

    def __init__(self, size: int, decoder: PieceDecoder | None = None) -> None:
        self.size = size
        self._decoder = decoder
        capacity = size if decoder is None else max(size, LONGEST_TEXT)
        self._tokens: deque[int] = deque(maxlen=capacity)
        self._pieces: deque[str] = deque(maxlen=capacity)
        self._normalized: deque[str] = deque(maxlen=capacity)
        self.pending: list[int] = []  # last tokens that form an incomplete character

    def __len__(self) -> int:
        return min(len(self._tokens), self.size)

    @property
    def tokens(self) -> list[int]:
        return last(self._tokens, self.size)

    def extend(self, tokens: Iterable[int]) -> list[str]:
        """Append emitted tokens; returns the text that each of them adds ("" without a decoder)."""
        return [self._append(token) for token in tokens]

    def followed_by(self, tokens: Iterable[int]) -> AnswerTail:
        """A tail with further tokens; this one stays as it is."""
        other = AnswerTail(self.size, copy(self._decoder))
        other._tokens.extend(self._tokens)
        other._pieces.extend(self._pieces)
        other._normalized.extend(self._normalized)
        other.pending = list(self.pending)
        other.extend(tokens)
        return other

    def _append(self, token: int) -> str:
        piece = ""
        if self._decoder is not None and token != BREAK:
            piece = self._decoder(token)
        self._tokens.append(token)
        self._pieces.append(piece)
        self._normalized.append(normalize(piece))
        if piece or token == BREAK:
            self.pending = []
        elif self._decoder is not None:
            self.pending.append(token)
        return piece

    def has_break(self, length: int) -> bool:
        return BREAK in last(self._tokens, length)

    def text(self, length: int) -> str:
        return joined_text(last(self._pieces, length))

    def normalized(self, length: int) -> str:
        """The letters and digits of the last `length` tokens."""
        return joined_text(last(self._normalized, length))

    def normalized_tokens(self) -> Iterator[str]:
        """The letters and digits of each token, the last one first, up to a `BREAK`."""
        tokens = reversed(self._tokens)
        for token, normal in islice(
            zip(tokens, reversed(self._normalized), strict=True), self.size
        ):
            if token == BREAK:
                return
            yield normal

    @property
    def trailing_marks(self) -> str:
        """The text after the last letter or digit."""
        text = ""
        for piece, normal in zip(reversed(self._pieces), reversed(self._normalized), strict=True):
            text = piece + text
            if normal:
                break
        end = len(text)
        while end and not normalize_character(text[end - 1]):
            end -= 1
        return text[end:]

    @property
    def word(self) -> str:
        """The beginning of the last word, with the space before it."""
        text = self.text(LONGEST_WORD)[-LONGEST_WORD:]
        start = len(text)
        while start and not text[start - 1].isspace():
            start -= 1
        return text[max(start - 1, 0) :]


def last(values: Sequence[Value], length: int) -> list[Value]:
    return list(islice(values, max(len(values) - length, 0), None))
