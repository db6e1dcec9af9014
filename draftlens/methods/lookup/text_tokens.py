"""From texts to token ids and back, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Protocol

from tokenizers.decoders import DecodeStream

from draftlens.core.references import References, Text
from draftlens.core.text import TextDecoder

ANCHOR = "\n"
"""Stands in front of a text that is tokenized as the continuation of another one. Tokenizers that
put a space in front of every text (SentencePiece) then put it in front of the anchor."""

MOST_HELD_BACK = 8
"""Tokens after which bytes that make no character are given up."""


def ids_of(text: Text, tokenizer: Any) -> list[int]:
    """The token ids of a reference, without special tokens around them.

    Args:
        text: a text, or ids, which are returned as they are.
        tokenizer: of the target; not needed for ids.
    """
    if not isinstance(text, str):
        return list(text)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def all_ids(references: References, row: int) -> list[list[int]]:
    """The token ids of all references of a row."""
    return [ids_of(text, references.tokenizer) for text in references.of_row(row)]


class PieceDecoder(Protocol):
    """Decodes the tokens of one text one after the other."""

    def add(self, token: int) -> str:
        """What the text gains by a token; empty while it ends inside a character."""
        ...


class StreamDecoder:
    """Decodes with the library `tokenizers`, in about a microsecond for each token.

    Args:
        backend: the tokenizer of the library `tokenizers`.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._begin()

    def add(self, token: int) -> str:
        """See `PieceDecoder.add`."""
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

    def _begin(self) -> None:
        """Forget the tokens so far."""
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held_back = 0


class SlowDecoder:
    """Decodes with any tokenizer.

    Args:
        tokenizer: has `decode`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._decoder = TextDecoder(tokenizer.decode)

    def add(self, token: int) -> str:
        """See `PieceDecoder.add`."""
        return self._decoder.add([token])


class TextCodec:
    """Tokenizes texts as continuations of other texts.

    Texts are compared as the tokenizer decodes them, so nothing depends on offsets, which slow
    tokenizers do not have, and a tokenizer that changes texts changes both sides alike.

    Args:
        tokenizer: of transformers, fast or slow.

    Attributes:
        special_ids: ids of the tokenizer's special tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self.special_ids = frozenset(getattr(tokenizer, "all_special_ids", ()))
        self._continuations: dict[tuple[str, str], list[int]] = {}

    def decoder(self) -> PieceDecoder:
        """A decoder of one text."""
        if self._backend is None:
            return SlowDecoder(self._tokenizer)
        return StreamDecoder(self._backend)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What the text gains by each of its tokens."""
        decoder = self.decoder()
        return [decoder.add(token) for token in ids]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text that stands behind a line break."""
        ids = self._encode_behind(ANCHOR, text)
        return self._encode(text) if ids is None else ids

    def continuation(self, before: str, text: str) -> list[int]:
        """The token ids of a text that stands behind another one, possibly inside a word.

        Args:
            before: the end of the text in front; the beginning of its last word suffices.
            text: what follows it.

        Returns:
            The tokens that follow `before` if both are tokenized together and no token goes across
            the boundary between them; else those that the text has behind a line break.
        """
        known = self._continuations.get((before, text))
        if known is None:
            ids = self._encode_behind(before, text) if before else None
            known = self.encode(text) if ids is None else ids
            self._continuations[before, text] = known
        return known

    def _encode_behind(self, before: str, text: str) -> list[int] | None:
        """Tokens of `text` behind `before`; None where a token goes across the boundary."""
        ids = self._encode(before + text)
        borders = list(accumulate(map(len, self.pieces(ids))))
        if len(before) not in borders:
            return None
        return ids[borders.index(len(before)) + 1 :]

    def _encode(self, text: str) -> list[int]:
        return ids_of(text, self._tokenizer)


def joined(pieces: Sequence[str]) -> str:
    """The text of pieces."""
    return "".join(pieces)
