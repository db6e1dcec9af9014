"""Immutable views of what a sequence has emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftlens.core.sampling import SamplingRule


@dataclass(frozen=True, eq=False)
class History:
    """One sequence up to a moment. Tokens that are emitted later do not change it.

    Args:
        prompt_ids: int64 ``[L]``, left-padded as in stock `generate`: processors and criteria read
            it.
        answer: the token list of the sequence, which only ever grows; the first `length` tokens
            count.
        seed: seed of the sampling noise, in [0, 2**63).
        row, num_rows: the row in its call of `generate`, and the rows of that call.
        from_draft: for each token of `answer`, whether the draft supplied it.
    """

    prompt_ids: Tensor
    answer: list[int]
    length: int
    seed: int
    sampling: SamplingRule
    row: int = 0
    num_rows: int = 1
    finished: bool = False
    from_draft: Sequence[bool] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.answer[: self.length])

    @property
    def last_token(self) -> int:
        return self.answer[self.length - 1]

    def ids(self, more: Sequence[int] = ()) -> Tensor:
        """Prompt, answer and `more`, int64 ``[length]``."""
        answer = self.prompt_ids.new_tensor([*self.answer[: self.length], *more])
        return torch.cat([self.prompt_ids, answer])

    def extended(self, more: Sequence[int]) -> History:
        answer = [*self.tokens, *more]
        return replace(self, answer=answer, length=len(answer))
