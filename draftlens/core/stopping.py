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
"""Criteria whose decision about a row does not depend on the other rows."""


@dataclass(frozen=True)
class Emission:
    """The decision of the stopping rules about one row in one round.

    Args:
        count: how many of the verdict's tokens are emitted; the token that ends the answer counts.
        finished: whether the answer ends with them.
    """

    count: int
    finished: bool


class StoppingRules:
    """Decides token by token, as stock `generate` does, although tokens arrive several at a time.

    One object serves all rows of a call.

    Args:
        criteria: transformers stopping criteria. End-of-sequence ids and lengths are read out of
            their criteria and cost nothing; all others are called for every single token.
        prompt_length: L, padding included, which is how stock `generate` counts.
        num_rows: rows of the call.
        pad_token_id: the id that stock `generate` writes behind a row that has ended.

    Attributes:
        in_step: whether all rows must emit equally many tokens in every round. A criterion may
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
        # Stock `generate` tells by this attribute whether rows that have ended are padded.
        self._pads = any(hasattr(c, "eos_token_id") for c in criteria)
        row_wise = all(isinstance(c, ROW_WISE) for c in self.criteria)
        can_be_alone = not self.criteria or (row_wise and self._pads)
        self.in_step = num_rows > 1 and not can_be_alone
        self._met: set[int] = set()

    def cut(self, history: History, tokens: Sequence[int]) -> Emission:
        """How many of `tokens` one row emits, whatever the other rows do."""
        for count, token in enumerate(tokens, start=1):
            if self._ends(history, token, count) or self._row_meets_criterion(
                history, tokens[:count]
            ):
                return Emission(count, finished=True)
        return Emission(len(tokens), finished=False)

    def cut_in_step(
        self, histories: Sequence[History], tokens: Sequence[Sequence[int]]
    ) -> list[Emission]:
        """The same for all rows of the call at once, as many tokens in each running row.

        Args:
            histories: all rows of the call in order, those that have ended included.
            tokens: new tokens of each row.
        """
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
        """Whether the id or the length ends the answer with the `count`-th new token."""
        return token in self.eos or history.length + count >= self.max_new_tokens

    def _row_meets_criterion(self, history: History, new: Sequence[int]) -> bool:
        if not self.criteria:
            return False
        ids = history.ids(new)[None]
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self.criteria)

    def _all_meet_criterion(self, ids: Tensor) -> list[bool]:
        """Per row whether any criterion is met; one truth value of a criterion is for all rows."""
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
        """The ids that stock `generate` shows its criteria after `count` new tokens, ``[B, n]``."""
        rows = [
            history.ids(() if history.finished else tokens[row][: ended_at.get(row, count)])
            for row, history in enumerate(histories)
        ]
        return torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self.pad_token_id
        )
