"""Forwards of a draft model over the token ids of its target."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EndsChain
from draftlens.models.kv_cache import KVCache


def score_tokens(
    backbone: Backbone,
    vocab_size: int,
    tokens: Tensor,
    positions: Tensor,
    cache: KVCache,
    mask: Tensor | None,
) -> Tensor:
    """`Backbone.forward` of a draft over ids of the target: logits ``[B, T, V]`` for its V ids."""
    if vocab_size > backbone.vocab_size:
        tokens = tokens.clamp_max(backbone.vocab_size - 1)
    return with_ids_of_the_target(backbone.forward(tokens, positions, cache, mask), vocab_size)


def likeliest(
    backbone: Backbone,
    vocab_size: int,
    logits: Tensor,
    positions: Tensor,
    cache: KVCache,
    count: int,
    ends: EndsChain | None = None,
) -> Tensor:
    """The likeliest chain of at most `count` ids of the target, int64 ``[B, T]``; all but the last
    are forwarded.

    `logits` ``[B, 1, V]`` follow each row's last token, and `positions`, int64 ``[..., B, 1]``, are
    those of the next ones. The rows of `cache` are equally long.
    """
    first = logits.argmax(-1)
    if (ends is not None and ends(logits, first)) or count == 1:
        return first
    later_tokens = backbone.greedy_chain(first, positions, cache, count - 1, vocab_size, ends)
    if later_tokens is not None:
        return torch.cat([first, later_tokens], 1)
    tokens = [first]
    for step in range(count - 1):
        logits = score_tokens(backbone, vocab_size, tokens[-1], positions + step, cache, None)
        tokens.append(logits.argmax(-1))
        if ends is not None and ends(logits, tokens[-1]):
            break
    return torch.cat(tokens, 1)


def with_ids_of_the_target(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits of a draft for the ids that the target has, ``[..., V]``."""
    missing = vocab_size - logits.shape[-1]
    if missing == 0:
        return logits
    if missing < 0:
        return logits[..., :vocab_size]
    # Logits processors are made for the target's ids: those that the draft lacks get no chance.
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
