"""From texts to token ids and back, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

from tokenizers.decoders import DecodeStream

from draftlens.core.references import References, Text
from draftlens.core.text import TextDecoder

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
