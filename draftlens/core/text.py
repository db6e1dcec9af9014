"""Text for display: escapes for untrusted text, and whole characters from token ids."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Decoders write it for incomplete characters."""

_LONGEST = 300
"""Most characters of an untrusted text in a sentence."""


def printable(text: str, keep: str = "") -> str:
    r"""Text with JSON's escapes for control and unprintable characters, and ``\xe9`` for bytes that
    are not UTF-8. Characters in `keep` stay, such as line breaks.

    Example:

        >>> print(printable("a\x1b[2J.png"))
        a\u001b[2J.png
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
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}...{text[-half:]}"


class TextDecoder:
    """Decodes the ids of one answer piece by piece, each id a bounded number of times.

    Text is held back while it ends inside a character. `tokenizers.decoders.DecodeStream` does not
    suffice: it drops such text at the end of an answer, and slow tokenizers have none.

    Example:

        >>> decoder = TextDecoder(lambda ids: bytes(ids).decode("utf-8", "replace"))
        >>> decoder.add([0xE2, 0x82]), decoder.add([0xAC])
        ('', '€')
    """

    def __init__(self, decode_ids: Callable[[list[int]], str]) -> None:
        self._decode_ids = decode_ids
        # The last ids already decoded: a tokenizer's spaces between words depend on them.
        self._context: list[int] = []
        self._pending: list[int] = []

    def __copy__(self) -> TextDecoder:
        other = TextDecoder(self._decode_ids)
        other._context = list(self._context)
        other._pending = list(self._pending)
        return other

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
        """The text still held back at the end of the answer."""
        text = self._pending_text()
        self._pending = []
        return text

    def _pending_text(self) -> str:
        before = self._decode_ids(self._context)
        return self._decode_ids([*self._context, *self._pending])[len(before) :]


def tokenizer_of(tokenizer: Any) -> Any:
    """The tokenizer itself, or that of a processor."""
    return getattr(tokenizer, "tokenizer", tokenizer)
