"""Text of token ids that arrive one after the other: whole characters only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Decoders put it where bytes of a character are missing."""


class TextDecoder:
    """Decodes the ids of one answer piece by piece.

    Text is held back while it ends inside a character, because the bytes of one character may come
    in different tokens. Each id is decoded a bounded number of times, however long the answer is.

    `tokenizers.decoders.DecodeStream` does the same for the texts that `draft.texts` compares, but
    not for answers: it drops what an answer that ends inside a character leaves held back, and slow
    tokenizers have none.

    Args:
        decode_ids: from ids to text, such as a tokenizer's `decode`.

    Example:

        >>> decoder = TextDecoder(lambda ids: bytes(ids).decode("utf-8", "replace"))
        >>> decoder.add([0xE2, 0x82]), decoder.add([0xAC])
        ('', '€')
    """

    def __init__(self, decode_ids: Callable[[list[int]], str]) -> None:
        self._decode_ids = decode_ids
        # The last ids whose text is out: a tokenizer's spaces between words depend on them.
        self._context: list[int] = []
        self._pending: list[int] = []

    def add(self, ids: Sequence[int]) -> str:
        """The text that these ids complete; empty while it ends inside a character."""
        self._pending.extend(ids)
        text = self._pending_text()
        if text.endswith(REPLACEMENT):
            return ""
        self._context = self._pending
        self._pending = []
        return text

    def flush(self) -> str:
        """The text that the end of the answer leaves held back."""
        text = self._pending_text()
        self._pending = []
        return text

    def _pending_text(self) -> str:
        before = self._decode_ids(self._context)
        return self._decode_ids([*self._context, *self._pending])[len(before) :]


def tokenizer_of(tokenizer: Any) -> Any:
    """A tokenizer, also of a processor that holds it."""
    return getattr(tokenizer, "tokenizer", tokenizer)
