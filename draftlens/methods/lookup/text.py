"""Texts reduced to letters and digits, so that spaces, punctuation and markup do not matter (as in
the authors' code of HSD)."""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, TypeVar

from tokenizers.decoders import DecodeStream

from draftlens.core.references import References, Text
from draftlens.core.text import TextDecoder

# Replaces a token that may not be proposed. It counts as a letter, so no window crosses it.
WALL = "\N{OBJECT REPLACEMENT CHARACTER}"


@lru_cache(maxsize=1 << 16)
def normalize_character(character: str) -> str:
    """The letters and digits of a character: `fi` of a ligature, `e` of an accented one, "" of a
    space, soft hyphen or accent."""
    if character == WALL:
        return WALL
    decomposed = unicodedata.normalize("NFKD", character)
    return "".join(part for part in decomposed if part.isalnum())


def normalize(text: str) -> str:
    """The letters and digits of a text; case is kept.

    Example:

        >>> normalize("| **ﬁnal** re-sult: 2² |")
        'finalresult22'
    """
    return "".join(map(normalize_character, text))


class NormalizedText:
    """The letters and digits of a text (`text`), with the way back to its characters."""

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._ends: list[int] = []
        for place, character in enumerate(text, start=1):
            part = normalize_character(character)
            parts.append(part)
            self._ends += [place] * len(part)
        self.text = "".join(parts)

    def end_in_text(self, end: int) -> int | None:
        """Index in the original after the characters of ``text[:end]``; None inside a character,
        such as a ligature."""
        if end == 0:
            return 0
        place = self._ends[end - 1]
        if end < len(self._ends) and self._ends[end] == place:
            return None
        return place

    def ends(self, window: str) -> Iterator[int]:
        return occurrences(self.text, window)

    def is_rest_empty(self, place: int) -> bool:
        """Whether no letter and no digit follows a place of the original."""
        return not self._ends or self._ends[-1] <= place


def occurrences(text: str, window: str) -> Iterator[int]:
    """Rising end indices of all occurrences of a window, overlapping ones included."""
    start = text.find(window)
    while start >= 0:
        yield start + len(window)
        start = text.find(window, start + 1)


# Precedes a text that is tokenized as a continuation. Tokenizers that put a space before every text
# (SentencePiece) then put it before the anchor.
ANCHOR = "\n"

MOST_HELD_BACK = 8  # Tokens after which bytes that form no character are given up.


def ids_of(text: Text, tokenizer: Any) -> list[int]:
    """The token ids of a reference without special tokens; ids are returned as they are."""
    if not isinstance(text, str):
        return list(text)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def all_ids(references: References, row: int) -> list[list[int]]:
    return [ids_of(text, references.tokenizer) for text in references.of_row(row)]


# The text that the next token adds, or "" inside a character. A copy (`copy.copy`) goes on alone.
PieceDecoder = Callable[[int], str]


class StreamDecoder:
    """Decodes with the library `tokenizers`, in about a microsecond per token."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._begin()

    def __call__(self, token: int) -> str:
        try:
            piece: str | None = self._stream.step(self._backend, token)
        except Exception:  # nothing narrower is raised where a text is no beginning of the next one
            self._begin()
            return ""
        if piece is not None:
            self._held_back = 0
            return piece
        self._held_back += 1
        if self._held_back > MOST_HELD_BACK:
            self._begin()
        return ""

    def __copy__(self) -> StreamDecoder:
        other = StreamDecoder(self._backend)
        other._stream = copy(self._stream)
        other._held_back = self._held_back
        return other

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held_back = 0


class SlowDecoder:
    """Decodes with a tokenizer that the library `tokenizers` does not have."""

    def __init__(self, text: TextDecoder) -> None:
        self._text = text

    def __call__(self, token: int) -> str:
        return self._text.add([token])

    def __copy__(self) -> SlowDecoder:
        return SlowDecoder(copy(self._text))


class TextCodec:
    """Tokenizes texts as continuations of other texts.

    Texts are compared as the tokenizer decodes them, so nothing depends on offsets, which slow
    tokenizers lack, and a tokenizer that changes texts changes both sides alike.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self.special_ids = frozenset(getattr(tokenizer, "all_special_ids", ()))
        self._continuations: dict[tuple[str, str], list[int]] = {}

    def decoder(self) -> PieceDecoder:
        if self._backend is None:
            return SlowDecoder(TextDecoder(self._tokenizer.decode))
        return StreamDecoder(self._backend)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        decoder = self.decoder()
        return [decoder(token) for token in ids]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text after a line break."""
        ids = self._encode_after(ANCHOR, text)
        return self._encode(text) if ids is None else ids

    def continuation(self, before: str, text: str) -> list[int]:
        """The token ids of a text after another one, possibly inside a word.

        The beginning of the last word of `before` suffices. Where a token crosses the boundary, the
        ids are those of the text after a line break.
        """
        token_ids = self._continuations.get((before, text))
        if token_ids is None:
            ids = self._encode_after(before, text) if before else None
            token_ids = self.encode(text) if ids is None else ids
            self._continuations[before, text] = token_ids
        return token_ids

    def _encode_after(self, before: str, text: str) -> list[int] | None:
        """Tokens of `text` after `before`; None where a token crosses the boundary."""
        ids = self._encode(before + text)
        borders = list(accumulate(map(len, self.pieces(ids))))
        if len(before) not in borders:
            return None
        return ids[borders.index(len(before)) + 1 :]

    def _encode(self, text: str) -> list[int]:
        return ids_of(text, self._tokenizer)


def joined_text(pieces: Sequence[str]) -> str:
    return "".join(pieces)


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
