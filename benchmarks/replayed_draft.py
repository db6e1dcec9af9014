"""A draft model that is right as often as a recorded one: its forwards are real, and the tokens
that it prefers are those of a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from simulation import NEVER, Token
from torch import Tensor

from draftlens.models.adapter import Backbone

CHOICES = 5
"""Tokens that the script prefers at each position, the likeliest first."""


class ReplayedDraft(Backbone):
    """A draft whose logits are those of a script after `play`, and its own before."""

    answer: Sequence[int] = ()
    text: Sequence[Token] = ()
    prompt_tokens: int = 0

    def play(self, text: Sequence[Token], answer: Sequence[int], prompt_tokens: int) -> None:
        """Draft like a recorded model.

        Args:
            text: how well each token of the answer is drafted.
            answer: the tokens that the target will choose.
            prompt_tokens: those before the answer.
        """
        self.text, self.answer, self.prompt_tokens = text, answer, prompt_tokens
        rows = [self._choices(step) for step in range(len(answer))]
        self._ids = torch.tensor([ids for ids, _ in rows], device=self.device)
        self._scores = torch.tensor([scores for _, scores in rows], device=self.device)

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: Any, mask: Tensor | None
    ) -> Tensor:
        """Forward the tokens and forget what the model says. `position_ids` are ``[1, T]``."""
        logits = super().forward(tokens, position_ids, cache, mask)
        if not self.text:
            return logits
        steps = (position_ids[0] - self.prompt_tokens + 1).clamp(0, len(self.answer) - 1)
        scores = self._scores[steps].to(logits.dtype)
        return torch.zeros_like(logits).scatter_(-1, self._ids[steps][None], scores[None])

    def greedy_chain(self, *_: Any, **__: Any) -> None:
        """Chains are computed by `forward`, which replaces the logits."""

    def _choices(self, step: int) -> tuple[list[int], list[float]]:
        """The preferred tokens at a step of the answer and their logits; all others have 0. The
        first one has the probability of the recorded confidence."""
        token, right = self.text[step], self.answer[step]
        # As many wrong tokens before the right one as its rank says.
        order = [(right + offset) % self.vocab_size for offset in range(1, CHOICES + 1)]
        if token.rank < NEVER:
            order.insert(token.rank, right)
        first = min(max(token.confidence, 1e-3), 1 - 1e-6)
        later = [math.exp(-2.0 * place) for place in range(1, CHOICES)]
        # Other choices share nine tenths of the rest, unless that would make one the first.
        share = min(0.9 * (1 - first) / sum(later), first)
        chances = [first, *(share * weight for weight in later)]
        unit = self.vocab_size / (1 - sum(chances))
        return order[:CHOICES], [math.log(unit * chance) for chance in chances]
