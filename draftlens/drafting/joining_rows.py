"""Rows between the draft's reading of their prompts and their place in the draft's batch."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.drafting.growth import Level, Nodes
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt


class ArrivingRows:
    """Rows whose prompts a draft model has read and that have not joined its batch. It is a
    `TreeScorer` of chains, so the first tokens of the answers can be guessed meanwhile.

    Args:
        backbone: the draft model.
        vocab_size: ids that the target has; the draft may have more or fewer.
        prompt: of these rows, as the model reads it.
        cache: holds the prompt; grows with the guesses that are forwarded.
        logits: behind each row's last token, ``[B, 1, V]``; None if nothing is to be guessed.

    Attributes:
        forwards: decode forwards so far, of one guess each.
    """

    def __init__(
        self,
        backbone: Backbone,
        vocab_size: int,
        prompt: Prompt,
        cache: KVCache,
        logits: Tensor | None,
    ) -> None:
        self.backbone = backbone
        self.vocab_size = vocab_size
        self.prompt = prompt
        self.cache = cache
        self.logits = logits
        self.forwards = 0

    def process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """See `TreeScorer.process`."""
        return nodes.process(logits)

    def catch_up(self, steps: Tensor) -> Tensor:
        """The logits of the prefill; see `TreeScorer.catch_up`."""
        assert self.logits is not None
        return with_ids_of_the_target(self.logits, self.vocab_size)

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Forward the one guess of a level; see `TreeScorer.expand`."""
        self.forwards += 1
        itself = torch.ones(1, 1, dtype=torch.bool, device=self.backbone.device)
        mask = trees.attention_mask(self.cache.lengths, itself)
        positions = self.prompt.positions(steps)
        return score_tokens(self.backbone, self.vocab_size, tokens, positions, self.cache, mask)

    def run_on(self, logits: Tensor, steps: Tensor, count: int) -> Tensor | None:
        """See `TreeScorer.run_on`."""
        if not self.cache.uniform:
            return None
        self.forwards += count - 1
        positions = self.prompt.positions(steps)
        return likeliest(self.backbone, self.vocab_size, logits, positions, self.cache, count)

    def follow(self, batch: Batch) -> list[list[int]]:
        """Keep the accepted guesses in the cache, as far as they were forwarded.

        Args:
            batch: these rows with their tokens: accepted guesses and one token more.

        Returns:
            Per row the tokens that the cache lacks; never empty.
        """
        pending = []
        lengths = []
        for history, length in zip(batch.histories, self.prompt.lengths, strict=True):
            tokens = list(history.tokens)
            num_kept = min(self.forwards, len(tokens) - 1)
            lengths.append(length + num_kept)
            # A row that has ended is forwarded beside the others and must not widen the pass.
            pending.append(tokens[-1:] if history.finished else tokens[num_kept:])
        self.cache.truncate(lengths)
        return pending


def score_tokens(
    backbone: Backbone,
    vocab_size: int,
    tokens: Tensor,
    positions: Tensor,
    cache: KVCache,
    mask: Tensor | None,
) -> Tensor:
    """`Backbone.forward` of a draft over ids of the target, with logits for these ids.

    Args:
        backbone: the draft model.
        vocab_size: V, ids that the target has.
        tokens, positions, cache, mask: as for `Backbone.forward`.

    Returns:
        logits ``[B, T, V]``.
    """
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
) -> Tensor:
    """The likeliest chain of ids of the target, int64 ``[B, count]``; all but the last are
    forwarded.

    Args:
        backbone, vocab_size: as for `score_tokens`.
        logits: behind each row's last token, ``[B, 1, V]``.
        positions: of the tokens that follow it, int64 ``[..., B, 1]``.
        cache: of rows that are equally long.
        count: length of the chain.
    """
    first = logits.argmax(-1)
    if count == 1:
        return first
    others = backbone.greedy_chain(first, positions, cache, count - 1, vocab_size)
    if others is not None:
        return torch.cat([first, others], 1)
    chosen = [first]
    for step in range(count - 1):
        logits = score_tokens(backbone, vocab_size, chosen[-1], positions + step, cache, None)
        chosen.append(logits.argmax(-1))
    return torch.cat(chosen, 1)


def with_ids_of_the_target(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits of a draft for the ids that the target has, ``[..., V]``."""
    missing = vocab_size - logits.shape[-1]
    if missing == 0:
        return logits
    if missing < 0:
        return logits[..., :vocab_size]
    # Logits processors are bound to the target's ids: those that the draft lacks are there, but
    # are never likely.
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
