"""Reads prompts: in one pass, or part by part after what a prompt cache has of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.kv_cache import HeldTokens, KVCache
from draftlens.models.prompt import TOKEN_INPUTS, Prompt
from draftlens.models.prompt_cache import answer_digests, prompt_digests
from draftlens.models.prompt_subset import gather
from draftlens.models.support import changing_frequencies, reads_with_original

PART = 1024
"""Most tokens of a row in a pass that follows others: its mask has an entry for each of them and
each token so far."""

READERS = 16
"""Tokens of a prompt that are read again where their attention guides a pruner."""


class PromptReading:
    """A prompt that is read into an empty cache.

    Args:
        cache: holds what the prompt cache of `backbone` has of the prompt, if anything, until
            `read` adds the rest.
        probe: measures attention in the passes; its readers are among the tokens that `read` adds.
        restores, stores: whether the prompt cache is read, and written.

    Attributes:
        cached: tokens of each row that come from the prompt cache.
    """

    def __init__(
        self,
        backbone: Backbone,
        prompt: Prompt,
        cache: KVCache,
        probe: AttentionProbe | None = None,
        restores: bool = True,
        stores: bool = True,
    ) -> None:
        self._backbone = backbone
        self._prompt = prompt
        self._cache = cache
        self._probe = probe
        self._logits: list[Tensor | None] = [None] * len(prompt.lengths)
        is_used = (
            prompt.namespace is not None
            and backbone.prompt_cache is not None
            and _may_be_divided(backbone, prompt)
        )
        self._stores = is_used and stores
        if is_used and (restores or stores):
            _name_tokens(prompt, prompt.namespace or "", cache)
            if restores:
                _restore(backbone, prompt, cache, 1 if probe is None else READERS)
        self.cached = list(cache.lengths)

    @property
    def done(self) -> bool:
        return all(logits is not None for logits in self._logits)

    def read(self, most: int | None = None) -> Tensor | None:
        """Read the rest, or at most `most` tokens of each row; logits ``[B, 1, V]`` after each
        row's last token when all are read, before that None."""
        if most is None and not any(self._cache.lengths):
            logits = self._backbone.prefill(self._prompt, self._cache, self._probe)
            self._logits = [logits[row : row + 1] for row in range(len(logits))]
        elif most is None:
            while not self.done:
                self._read_part(PART)
        else:
            self._read_part(min(most, PART))
        if not self.done:
            return None
        if self._stores:
            store(self._backbone, self._cache)
        return torch.cat([logits for logits in self._logits if logits is not None])

    def _read_part(self, most: int) -> None:
        lengths = self._prompt.lengths
        starts = list(self._cache.lengths)
        ends = [min(start + most, length) for start, length in zip(starts, lengths, strict=True)]
        # A row that is read whole reads its last token again, to slots that are dropped.
        firsts = [min(start, length - 1) for start, length in zip(starts, lengths, strict=True)]
        indices = [
            torch.arange(first, max(end, first + 1))
            for first, end in zip(firsts, ends, strict=True)
        ]
        part = gather(self._prompt, indices)
        if self._probe is not None:
            self._probe.begin_part(starts, ends)
        logits = self._backbone.read_on(part, self._cache, self._probe)
        self._cache.truncate(ends)
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            if end == length and self._logits[row] is None:
                self._logits[row] = logits[row : row + 1]


def _may_be_divided(backbone: Backbone, prompt: Prompt) -> bool:
    """Whether the keys of a part of a prompt are those of the whole, which they are not where the
    rotary frequencies follow from the length."""
    if not changing_frequencies(backbone.text_config):
        return True
    return reads_with_original(backbone.text_config, int(prompt.position_ids.max()) + 1)


def _name_tokens(prompt: Prompt, namespace: str, cache: KVCache) -> None:
    for row in range(len(prompt.lengths)):
        cache.held[row] = HeldTokens(namespace, prompt_digests(prompt, row))


def _restore(backbone: Backbone, prompt: Prompt, cache: KVCache, least: int) -> None:
    """Fill the rows of an empty cache with what the prompt cache has of a prompt, but for the last
    `least` tokens of each row."""
    stored = backbone.prompt_cache
    assert stored is not None
    for row, (length, cached) in enumerate(zip(prompt.lengths, cache.held, strict=True)):
        assert cached is not None
        num_shared = min(stored.shared(backbone.model, cached), max(length - least, 0))
        stored.restore(
            backbone.model, cached, cache, row, before_media(prompt.visual[row], num_shared)
        )


def before_media(visual: Tensor, end: int) -> int:
    """`end`, or the beginning of the run of visual tokens (bool ``[L]``) that it would divide."""
    if not 0 < end < len(visual) or not (visual[end] and visual[end - 1]):
        return end
    text = (~visual[:end]).nonzero()
    return int(text[-1]) + 1 if len(text) else 0


def store(backbone: Backbone, cache: KVCache) -> None:
    """Store the prompts that the rows of a cache hold."""
    assert backbone.prompt_cache is not None
    for row, cached in enumerate(cache.held):
        assert cached is not None
        backbone.prompt_cache.store(backbone.model, cached, cache, row)


def store_answer(
    backbone: Backbone, cache: KVCache, row: int, tokens: Sequence[int], next_position: Tensor
) -> None:
    """Store a row that has ended, with the tokens of its answer that the cache holds, if its prompt
    is stored. `next_position` of the prompt is int64 ``[..., 1]``."""
    cached = cache.held[row]
    if cached is None or backbone.prompt_cache is None:
        return
    cache.held[row] = None  # once
    if not tokens:
        return
    # A draft may have fewer ids than its target; its passes read the last one in their place.
    ids = torch.tensor(tokens, device=backbone.device).clamp_max(backbone.vocab_size - 1)
    positions = next_position + torch.arange(len(tokens), device=next_position.device)
    with torch.inference_mode():
        further = backbone.token_inputs(ids).get(TOKEN_INPUTS)
        digests = answer_digests(backbone.embed(ids), positions, further)
    backbone.prompt_cache.store(backbone.model, cached.followed_by(digests), cache, row)
