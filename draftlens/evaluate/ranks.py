"""Where the draft ranks each of the target's own tokens, in one teacher-forced forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.tree import ROOT
from draftlens.models.backbone import Backbone
from draftlens.models.prompt import Prepared, Prompt
from draftlens.ops.sampling import SamplingRule
from draftlens.sequences.rows import Rows

Ranks = list[int]
"""Of each token of an answer behind its first: 1 where the draft would have guessed it."""


def draft_ranks(
    draft: Backbone,
    prompt: Prompt,
    answers: Sequence[Sequence[int]],
    prepared: Prepared,
    vocab: int,
) -> list[Ranks]:
    """Ranks of the answers' tokens in the draft's scores, each behind the answer so far.

    Args:
        draft: the model.
        prompt: of B rows, as the draft sees it, perhaps pruned.
        answers: B rows of the target's ids.
        prepared: the target's call, whose logits processors bend the draft's scores as they do in a
            session.
        vocab: ids that the target knows.
    """
    longest = max(map(len, answers))
    if longest < 2:
        return [[] for _ in answers]
    table = torch.tensor(
        [[*row, *[0] * (longest - len(row))] for row in answers], device=draft.device
    )
    cache = draft.new_cache(prompt, longest)
    draft.prefill(prompt, cache)
    count = longest - 1
    steps = torch.arange(count, device=draft.device).expand(len(answers), -1)
    # Padding stands behind each row's tokens, where no token sees it.
    mask = trees.attention_mask(
        cache.lengths, torch.ones(count, count, dtype=torch.bool, device=draft.device).tril()
    )
    known = table[:, :-1].clamp_max(draft.vocab_size - 1)
    logits = draft.forward(known, prompt.positions(steps), cache, mask)[..., :vocab]
    # Processors are bound to the target's ids: those that the draft lacks are there, but never
    # likely.
    logits = torch.nn.functional.pad(logits, (0, vocab - logits.shape[-1]), value=-torch.inf)
    scores = _processed(logits, table, prepared)
    ranks = _rank(scores, table[:, 1:])
    return [row[: len(answer) - 1] for row, answer in zip(ranks.tolist(), answers, strict=True)]


def _processed(logits: Tensor, table: Tensor, prepared: Prepared) -> Tensor:
    """The logits ``[B, T, V]`` after the call's processors, each position with its own history."""
    rows = Rows(prepared.input_ids, SamplingRule(prepared.processors))
    rows.tokens = table[:, :1].tolist()
    answer = trees.chain(
        table.shape[1] - 2
    )  # as if the answer had been guessed behind its first token
    return rows.rule.process(
        logits, partial(rows.histories, answer, table[:, 1:], range(ROOT, len(answer)))
    )


def _rank(scores: Tensor, tokens: Tensor) -> Tensor:
    """Rank of each token, int64 ``[B, T]``, in scores ``[B, T, V]``; of equal scores the lower id
    comes first."""
    own = scores.gather(-1, tokens[..., None])
    ids = torch.arange(scores.shape[-1], device=scores.device)
    before = (scores > own) | ((scores == own) & (ids < tokens[..., None]))
    return before.sum(-1) + 1
