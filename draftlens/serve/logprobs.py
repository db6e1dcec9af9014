"""Log probabilities in OpenAI's forms, handed out with the text of their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from draftlens.core.logprobs import TokenTexts
from draftlens.core.result import TokenLogprob
from draftlens.core.text import REPLACEMENT, TextDecoder
from draftlens.serve.text import RowText

LEAST = -9999.0
"""Stands for a probability of 0, since JSON has no infinity."""

Placed = tuple[int, TokenLogprob]
"""A token, and the index in the text of the answer at which its own text begins."""


class RowLogprobs(ABC):
    """The tokens of one choice. A token is held back until the text at its beginning is handed out;
    of tokens after that, such as those of a stop text, nothing is handed out."""

    def __init__(self, texts: TokenTexts, decode_ids: Callable[[list[int]], str]) -> None:
        self.texts = texts
        self._decoder = TextDecoder(decode_ids)
        self._length = 0
        self._held: list[Placed] = []

    def add(self, entries: Sequence[TokenLogprob]) -> None:
        for entry in entries:
            self._held.append((self._length, entry))
            self._length += len(self._decoder.add([entry.token]))

    def take(self, text: RowText, ended: bool) -> dict[str, Any]:
        """The tokens of `text` that have not been taken, in OpenAI's form. At the end of an answer
        they include those after which no text comes, such as its end-of-sequence token."""
        count = len(self._held)
        if text.stopped or not ended:
            count = sum(start < len(text.text) for start, _ in self._held)
        taken, self._held = self._held[:count], self._held[count:]
        return self.form(taken)

    @abstractmethod
    def form(self, entries: Sequence[Placed]) -> dict[str, Any]: ...

    def label(self, token: int) -> str:
        """The text of a token; that of a part of a character shows its bytes."""
        text, content = self.texts.text(token), self.texts.added_bytes(token)
        if REPLACEMENT not in text or content is None:
            return text
        return "".join(f"\\x{value:02x}" for value in content)


class ChatLogprobs(RowLogprobs):
    """The form of responses to messages."""

    def form(self, entries: Sequence[Placed]) -> dict[str, Any]:
        content = [
            {**self._token(entry), "top_logprobs": [self._token(other) for other in entry.top]}
            for _, entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, entry: TokenLogprob) -> dict[str, Any]:
        content = self.texts.added_bytes(entry.token)
        return {
            "token": self.label(entry.token),
            "logprob": _finite(entry.logprob),
            "bytes": None if content is None else list(content),
        }


class CompletionLogprobs(RowLogprobs):
    """The form of responses to prompts."""

    def form(self, entries: Sequence[Placed]) -> dict[str, Any]:
        return {
            "tokens": [self.label(entry.token) for _, entry in entries],
            "token_logprobs": [_finite(entry.logprob) for _, entry in entries],
            "top_logprobs": [self._best(entry) for _, entry in entries],
            "text_offset": [start for start, _ in entries],
        }

    def _best(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the token itself; of several with one text the likeliest."""
        best: dict[str, float] = {}
        for other in (*entry.top, entry):
            best.setdefault(self.label(other.token), _finite(other.logprob))
        return best


def _finite(logprob: float) -> float:
    return max(LEAST, logprob)
