"""Where answers end: end-of-sequence ids, length, stop strings and any other criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)

from draftlens.core.history import History
from draftlens.core.repetition import LoopCriterion

ROW_WISE = (StopStringCriteria, MaxTimeCriteria, LoopCriterion)
"""Criteria that decide about each row independently of the others."""


@dataclass(frozen=True)
class Emission:
    """How many of the verdict's tokens a row emits, and whether its answer ends with them."""

    count: int
    finished: bool


class StoppingRules:
    """Decides token by token like stock `generate`, although several tokens arrive at a time.

    Args:
        criteria: of transformers. End-of-sequence ids and lengths are extracted and cheap; all
            others are called for every single token.
        prompt_length: L, padding included, as stock `generate` counts.
        pad_token_id: written by stock `generate` after the end of a row.

    Attributes:
        in_step: whether all rows must emit equally many tokens in every round: a criterion may
            compare rows, and without an end-of-sequence id stock `generate` continues every row
            until all rows have met a criterion.
    """

    def __init__(
        self,
        criteria: Sequence[Any],
        prompt_length: int,
        num_rows: int = 1,
        pad_token_id: int = 0,
    ) -> None:
        eos_criteria = [c for c in criteria if isinstance(c, EosTokenCriteria)]
        limits = [
            c.max_length - prompt_length for c in criteria if isinstance(c, MaxLengthCriteria)
        ]
        self.eos = frozenset(
            int(token) for c in eos_criteria for token in c.eos_token_id.flatten().tolist()
        )
        self.max_new_tokens: int = max(1, min(limits, default=1))
        self.pad_token_id = pad_token_id
        self.criteria = [
            c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))
        ]
        # Stock `generate` pads rows that have ended only if a criterion has this attribute.
        self._pads = any(hasattr(c, "eos_token_id") for c in criteria)
        row_wise = all(isinstance(c, ROW_WISE) for c in self.criteria)
        can_be_alone = not self.criteria or (row_wise and self._pads)
        self.in_step = num_rows > 1 and not can_be_alone
        self._met: set[int] = set()

    def cut(self, history: History, tokens: Sequence[int]) -> Emission:
        """How many of `tokens` one row emits, independently of other rows."""
        for count, token in enumerate(tokens, start=1):
            if self._ends(history, token, count) or self._row_meets_criterion(
                history, tokens[:count]
            ):
                return Emission(count, finished=True)
        return Emission(len(tokens), finished=False)

    def cut_in_step(
        self, histories: Sequence[History], tokens: Sequence[Sequence[int]]
    ) -> list[Emission]:
        """`cut` for all rows of the call, equally many tokens in each running row."""
        running = [row for row, history in enumerate(histories) if not history.finished]
        self._met.update(row for row, history in enumerate(histories) if history.finished)
        longest = min(len(tokens[row]) for row in running)
        ended_at: dict[int, int] = {}
        for count in range(1, longest + 1):
            ids = self._ids_in_step(histories, tokens, count, ended_at)
            ends = self._all_meet_criterion(ids)
            for row in running:
                if ends[row] or self._ends(histories[row], tokens[row][count - 1], count):
                    self._met.add(row)
                    if self._pads:
                        ended_at.setdefault(row, count)
            if len(self._met) == len(histories):
                for row in running:
                    ended_at.setdefault(row, count)
                longest = count
                break
        return [
            Emission(ended_at.get(row, longest), finished=row in ended_at)
            for row in range(len(histories))
        ]

    def _ends(self, history: History, token: int, count: int) -> bool:
        return token in self.eos or history.length + count >= self.max_new_tokens

    def _row_meets_criterion(self, history: History, new: Sequence[int]) -> bool:
        if not self.criteria:
            return False
        ids = history.ids(new)[None]
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self.criteria)

    def _all_meet_criterion(self, ids: Tensor) -> list[bool]:
        """Per row whether any criterion is met; a scalar criterion counts for all rows."""
        met = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for criterion in self.criteria:
            met |= torch.as_tensor(criterion(ids, None), device=ids.device).bool()
        return met.tolist()

    def _ids_in_step(
        self,
        histories: Sequence[History],
        tokens: Sequence[Sequence[int]],
        count: int,
        ended_at: dict[int, int],
    ) -> Tensor:
        """What stock `generate` passes to its criteria after `count` new tokens, ``[B, n]``."""
        rows = [
            history.ids(() if history.finished else tokens[row][: ended_at.get(row, count)])
            for row, history in enumerate(histories)
        ]
        return torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self.pad_token_id
        )
