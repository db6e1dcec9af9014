"""From the tokens of one tokenizer to those of another, by the text that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from draftlens.core.locks import ForkLock
from draftlens.core.text import REPLACEMENT


class Retokenizer:
    """Between a target and a draft with different tokenizers. Special tokens have no text. Any
    thread may use it: it has copies of the tokenizers and a lock."""

    def __init__(self, target: Any, draft: Any) -> None:
        self._lock = ForkLock()
        self._target = deepcopy(target)
        self._draft = deepcopy(draft)
        self.draft_eos: int | None = draft.eos_token_id

    def draft_ids(self, tokens: Sequence[int]) -> list[int]:
        """The draft's tokens of the text of the target's `tokens`, up to its last whole
        character."""
        with self._lock:
            return _encoded(self._draft, _text(self._target, tokens).rstrip(REPLACEMENT))

    def continuation(
        self, tokens: Sequence[int], known: Sequence[int], written: Sequence[int]
    ) -> list[int]:
        """The target's tokens after `tokens` for what the draft has written.

        `known` are the draft's ids of `tokens`, and `written` those after them. The text of both is
        tokenized as a whole, and where that does not begin with `tokens`, the new text alone.
        """
        with self._lock:
            return self._continuation(tokens, known, written)

    def _continuation(
        self, tokens: Sequence[int], known: Sequence[int], written: Sequence[int]
    ) -> list[int]:
        before = _text(self._draft, known)
        after = _text(self._draft, [*known, *written]).rstrip(REPLACEMENT)
        answer = _text(self._target, tokens)
        if answer.endswith(REPLACEMENT) or not after.startswith(before):
            return []
        whole = _encoded(self._target, answer + after[len(before) :])
        if whole[: len(tokens)] == list(tokens):
            return whole[len(tokens) :]
        return _encoded(self._target, after[len(before) :])


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def _encoded(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
