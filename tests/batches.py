"""Batches whose rows have emitted given tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor
from transformers.generation.stopping_criteria import MaxLengthCriteria

from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.sequence import Batch, Sequence, StoppingRules, sequences_of

MAX_NEW_TOKENS = 100


def sequences(
    prompt_ids: Tensor, answers: Seq[Seq[int]], rule: SamplingRule | None = None, seed: int = 0
) -> list[Sequence]:
    """The rows of one call with their tokens so far.

    Args:
        prompt_ids: int64 ``[B, L]``.
        answers: the tokens of each row.
        rule: how tokens are chosen; greedily by default.
        seed: of the call.
    """
    num_rows, length = prompt_ids.shape
    stopping = StoppingRules([MaxLengthCriteria(length + MAX_NEW_TOKENS)], length, num_rows)
    rows = sequences_of(prompt_ids, rule or SamplingRule(), stopping, row_seeds(seed, num_rows))
    for row, tokens in zip(rows, answers, strict=True):
        row.tokens.extend(tokens)
        row.from_draft.extend([False] * len(tokens))
    return rows


def batch_of(rows: Seq[Sequence]) -> Batch:
    """The rows as they are now."""
    return Batch(tuple(row.history for row in rows))
