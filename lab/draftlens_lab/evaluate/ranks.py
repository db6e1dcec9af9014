"""The draft's rank of each of the target's own tokens, from one teacher-forced forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Batch, StoppingRules, sequences_of
from draftlens.core.tree import ROOT
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared, Prompt

Ranks = list[int]
"""The rank, from 1, of each token of an answer after its first; 1 is the draft's own choice."""


def draft_ranks(
    draft: Backbone,
    prompt: Prompt,
    answers: Sequence[Sequence[int]],
    prepared: Prepared,
    vocab_size: int,
) -> list[Ranks]:
    """Ranks of the answers' tokens in the draft's scores, each token given those before it.

    Returns:
        Ranks of each row's tokens after its first.
    """
    tokens = _padded(answers).to(draft.device)
    if tokens.shape[1] < 2:
        return [[] for _ in answers]
    logits = _teacher_forced_logits(draft, prompt, tokens[:, :-1])[..., :vocab_size]
    # The processors expect the target's ids: ids that the draft lacks get a logit of -inf.
    missing = vocab_size - logits.shape[-1]
    logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    ranks = _rank(_processed(logits, tokens, prepared), tokens[:, 1:])
    return [row[: len(answer) - 1] for row, answer in zip(ranks.tolist(), answers, strict=True)]


def _padded(answers: Sequence[Sequence[int]]) -> Tensor:
    """Answers of B rows with zeros after the shorter ones, int64 ``[B, T]``."""
    rows = [torch.tensor(answer, dtype=torch.long) for answer in answers]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _teacher_forced_logits(draft: Backbone, prompt: Prompt, tokens: Tensor) -> Tensor:
    """The draft's logits ``[B, T, V]`` after each of T tokens ``[B, T]`` that follow the prompt."""
    rows, count = tokens.shape
    cache = draft.new_cache(prompt, count + 1)
    draft.prefill(prompt, cache)
    steps = torch.arange(count, device=draft.device).expand(rows, -1)
    # Padding comes after each row's tokens, so a causal mask hides it from them.
    causal = torch.ones(count, count, dtype=torch.bool, device=draft.device).tril()
    mask = trees.attention_mask(cache.lengths, causal)
    known_tokens = tokens.clamp_max(draft.vocab_size - 1)
    return draft.forward(known_tokens, prompt.positions(steps), cache, mask)


def _processed(logits: Tensor, tokens: Tensor, prepared: Prepared) -> Tensor:
    """The logits ``[B, T, V]`` after the call's logits processors, each position with its own
    history.

    Args:
        logits: float ``[B, T, V]``.
        tokens: the answers, int64 ``[B, T + 1]``.
    """
    num_rows, length = tokens.shape
    stopping = StoppingRules([], prepared.input_ids.shape[1], num_rows)
    rule = SamplingRule(prepared.processors)
    sequences = sequences_of(prepared.input_ids, rule, stopping, [0] * num_rows)
    for sequence, token in zip(sequences, tokens[:, 0].tolist(), strict=True):
        sequence.tokens.append(token)
    batch = Batch(tuple(sequence.history for sequence in sequences))
    # The rest of the answer takes the place of a chain of draft tokens after the first token.
    answer = trees.chain(length - 2)
    nodes = [range(ROOT, len(answer))] * num_rows
    return batch.process(logits, [answer] * num_rows, tokens[:, 1:], nodes)


def _rank(scores: Tensor, tokens: Tensor) -> Tensor:
    """Rank of each token in the scores at its position; of equal scores the lower id comes first.

    Args:
        scores: float ``[B, T, V]``.
        tokens: int64 ``[B, T]``.

    Returns:
        Ranks from 1, int64 ``[B, T]``.
    """
    token_scores = scores.gather(-1, tokens[..., None])
    ids = torch.arange(scores.shape[-1], device=scores.device)
    ties = (scores == token_scores) & (ids < tokens[..., None])
    return ((scores > token_scores) | ties).sum(-1) + 1
