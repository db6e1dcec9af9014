"""The metric A: the share of a lossy answer's tokens that the full target accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared, Prompt
from draftlens_lab.bench.lossy.greedy import greedy_choice


def accepted_tokens(
    backbone: Backbone, prepared: Prepared, prompt: Prompt, tokens: Sequence[int]
) -> list[bool]:
    """Which tokens of an answer the target accepts, reading the whole prompt and, at each token,
    the answer's own tokens before it.

    ParallelVLM (appendix A) stores the texts that pruned targets generate and lets the target with
    full context judge every token as in speculative sampling; A is the share that it accepts. The
    answers here are greedy, and then the rule of speculative sampling accepts a token if and only
    if it is the target's own choice. One pass judges all tokens, and those after a rejected token
    are judged, too.

    Returns:
        One bool for each token.
    """
    if not tokens:
        return []
    answer = torch.tensor([list(tokens)], device=backbone.device)
    logits = teacher_forced_logits(backbone, prompt, answer)
    accepted = []
    for index, token in enumerate(tokens):
        history = torch.cat([prepared.input_ids, answer[:, :index]], 1)
        accepted.append(greedy_choice(prepared, history, logits[:, index]) == token)
    return accepted


def teacher_forced_logits(backbone: Backbone, prompt: Prompt, answer: Tensor) -> Tensor:
    """Logits in front of each token of an answer, ``[1, T, V]``, in one pass.

    Args:
        answer: int64 ``[1, T]``, T at least 1.
    """
    num_tokens = answer.shape[1]
    extended = backbone.followed_by(prompt, answer[:, :-1])
    cache = backbone.new_cache(extended, room=0)
    return backbone.prefill(extended, cache, num_logits=num_tokens)
