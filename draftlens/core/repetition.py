"""Detects answers that repeat themselves endlessly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from draftlens.core.errors import ConfigError

LONGEST_PERIOD = 64
"""Longest pattern that is searched for, in tokens."""


class LoopCriterion(StoppingCriteria):  # type: ignore[misc]
    """Ends a row after many repetitions of one pattern at the end of its answer.

    The decision depends on the row's own tokens alone, so stock `generate` with this criterion ends
    at the same token: ``model.generate(**inputs, stopping_criteria=[LoopCriterion(length)])``.

    Args:
        prompt_length: in tokens with padding; repeated placeholders of pictures do not count.
        repeats: a pattern is a loop from this many repetitions on.
        least_tokens: ... and from this many tokens in total, so that a table's rule is no loop.
    """

    def __init__(self, prompt_length: int, repeats: int = 8, least_tokens: int = 128) -> None:
        if prompt_length < 0 or repeats < 2 or least_tokens < 2:
            raise ConfigError(
                "a loop criterion needs the length of the prompt, at least 2 repetitions and at "
                "least 2 tokens"
            )
        self.prompt_length = prompt_length
        self.repeats = repeats
        self.least_tokens = least_tokens

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Whether each row ends, bool ``[B]``; `input_ids` include prompts, int64 ``[B, L]``."""
        answers = input_ids[:, self.prompt_length :]
        longest = max(LONGEST_PERIOD * self.repeats, self.least_tokens + LONGEST_PERIOD)
        ends = [self.is_loop(row) for row in answers[:, -longest:].tolist()]
        return torch.tensor(ends, dtype=torch.bool, device=input_ids.device)

    def is_loop(self, tokens: list[int]) -> bool:
        return any(self._repeats(tokens, period) for period in range(1, LONGEST_PERIOD + 1))

    def _repeats(self, tokens: list[int], period: int) -> bool:
        needed = max(period * self.repeats, self.least_tokens)
        if len(tokens) < needed or tokens[-1] != tokens[-1 - period]:
            return False
        end = tokens[-needed:]
        return end[period:] == end[:-period]
