"""Text that is shown: strangers' text made printable, and whole characters of token ids."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Decoders put it where bytes of a character are missing."""

_LONGEST = 300
"""Characters of a stranger's text in a sentence."""


def printable(text: str, keep: str = "") -> str:
    """Text with JSON's escapes in place of characters that a terminal would obey or cannot show,
    and ``\\xe9`` in place of bytes that are not UTF-8.

    Args:
        text: such as a file name or a server's words.
        keep: characters that stay, such as line breaks.

    Example:

        >>> print(printable("a\\x1b[2J.png"))
        a\\u001b[2J.png
    """
    if text.isprintable():
        return text
    # Bytes of file names that are not UTF-8, as Python holds them.
    text = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", text)
    return "".join(
        character if _is_shown(character) or character in keep else json.dumps(character)[1:-1]
        for character in text
    )


def _is_shown(character: str) -> bool:
    # Python calls every space but one unprintable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def shortened(text: str) -> str:
    """Text without its middle, if it is long."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}...{text[-half:]}"


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
