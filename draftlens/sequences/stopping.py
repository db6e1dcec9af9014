"""The one place where answers end: end-of-sequence ids, length, stop strings and any other
criterion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from draftlens.sequences.rows import Rows


class Stopper:
    """Decides token by token, as stock `generate` does, although tokens arrive several at a time.

    Args:
        criteria: transformers stopping criteria. End-of-sequence and length are read out of theirs
            and cost nothing; all others are asked about every single token.
        prompt_length: L, padding included, which is how stock `generate` counts.
    """

    def __init__(self, criteria: Sequence[Any], prompt_length: int) -> None:
        eos = [c for c in criteria if isinstance(c, EosTokenCriteria)]
        limits = [
            c.max_length - prompt_length for c in criteria if isinstance(c, MaxLengthCriteria)
        ]
        self.eos = frozenset(int(i) for c in eos for i in c.eos_token_id.flatten().tolist())
        self.max_new_tokens: int = max(1, min(limits, default=1))
        self.others = [
            c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))
        ]

    def room(self, rows: Rows) -> int:
        """Most tokens that any running row may still emit."""
        lengths = [
            len(t) for t, finished in zip(rows.tokens, rows.finished, strict=True) if not finished
        ]
        return self.max_new_tokens - min(lengths) if lengths else 0

    def cut(self, rows: Rows, row: int, tokens: Sequence[int]) -> tuple[int, bool]:
        """How many of `tokens` the row may add, and whether its answer ends there.

        The token that ends it is included.
        """
        held = len(rows.tokens[row])
        for count, token in enumerate(tokens, start=1):
            if (
                token in self.eos
                or held + count >= self.max_new_tokens
                or self._others_stop(rows, row, tokens[:count])
            ):
                return count, True
        return len(tokens), False

    def _others_stop(self, rows: Rows, row: int, new: Sequence[int]) -> bool:
        if not self.others:
            return False
        # A criterion may tell rows apart by index, so it is asked in the row's place; one bool may
        # stand for all rows.
        ids = rows.history(row, new).repeat(len(rows), 1)
        return any(
            bool(torch.as_tensor(criterion(ids, None)).expand(len(rows))[row])
            for criterion in self.others
        )
