"""Reads prompts: in one pass, or part by part after what a prompt cache has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.hidden_states import HiddenStates
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
        states: collects hidden states in the passes; only those tokens come from the prompt cache
            of which it has these, too.
        stores: whether the prompt cache is written.

    Attributes:
        cached: tokens of each row that come from the prompt cache.
    """

    def __init__(
        self,
        backbone: Backbone,
        prompt: Prompt,
        cache: KVCache,
        probe: AttentionProbe | None = None,
        states: HiddenStates | None = None,
        stores: bool = True,
    ) -> None:
        self._backbone = backbone
        self._prompt = prompt
        self._cache = cache
        self._probe = probe
        self._states = states
        self._logits: list[Tensor | None] = [None] * len(prompt.lengths)
        is_used = (
            prompt.namespace is not None
            and backbone.prompt_cache is not None
            and _may_be_divided(backbone, prompt)
        )
        self._stores = is_used and stores
        self._stores_ends = self._stores and backbone.states is not None
        self._least = 1 if probe is None else READERS  # last tokens that are read in any case
        if is_used:
            self._restore()
        self.cached = list(cache.lengths)
        cache.collect(self._stores)

    def _restore(self) -> None:
        """Fill the rows of the empty cache with what the prompt cache has of the prompt, but for
        the last `_least` tokens of each row."""
        backbone, prompt, cache = self._backbone, self._prompt, self._cache
        stored = backbone.prompt_cache
        assert stored is not None
        for row, length in enumerate(prompt.lengths):
            held = cache.held[row] = HeldTokens(prompt.namespace or "", prompt_digests(prompt, row))
            num_shared = min(stored.shared(backbone.model, held), max(length - self._least, 0))
            if self._states is not None:
                num_shared = self._states.restore(row, held, num_shared)
            most = before_media(prompt.visual[row], num_shared)
            at_end = backbone.states is not None
            end = stored.restore(backbone.model, held, cache, row, most, at_end)
            if at_end:
                backbone.states.begin(cache, row, end)

    @property
    def done(self) -> bool:
        return all(logits is not None for logits in self._logits)

    def read(self, most: int | None = None) -> Tensor | None:
        """Read the rest, or at most `most` tokens of each row; logits ``[B, 1, V]`` after each
        row's last token when all are read, before that None."""
        if most is None and not any(self._cache.lengths) and not self._stores_ends:
            logits = self._backbone.prefill(self._prompt, self._cache, self._probe)
            self._logits = [logits[row : row + 1] for row in range(len(logits))]
        elif most is None:
            while not self.done:
                self._read_part(PART if any(self._cache.lengths) else max(self._prompt.lengths))
        else:
            self._read_part(min(most, PART))
        if not self.done:
            return None
        if self._stores and not self._stores_ends:
            store(self._backbone, self._cache)
            self._cache.collect(False)
        return torch.cat([logits for logits in self._logits if logits is not None])

    def _read_part(self, most: int) -> None:
        lengths = self._prompt.lengths
        starts = list(self._cache.lengths)
        stops = [self._stop(*limits) for limits in zip(starts, lengths, strict=True)]
        ends = list(map(min, _ends_of_part(self._prompt, starts, most), stops))
        # A row that is read whole reads its last token again, to slots that are dropped.
        firsts = [min(start, length - 1) for start, length in zip(starts, lengths, strict=True)]
        indices = [
            torch.arange(first, max(end, first + 1))
            for first, end in zip(firsts, ends, strict=True)
        ]
        part = gather(self._prompt, indices)
        for listener in (self._probe, self._states):
            if listener is not None:
                listener.begin_part(starts, ends)
        whole = self._stores_ends and not any(starts)
        read = self._backbone.prefill if whole else self._backbone.read_on
        logits = read(part, self._cache, self._probe)
        self._cache.truncate(ends)
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            if end == length and self._logits[row] is None:
                self._logits[row] = logits[row : row + 1]
            if self._stores_ends and starts[row] < end == length - self._least:
                held = self._cache.held[row]
                assert held is not None
                first = replace(held, digests=held.digests[:end])
                _store_row(self._backbone, self._cache, row, first)

    def _stop(self, start: int, length: int) -> int:
        """Where a part ends at the latest. The states that are kept are those before the last
        tokens, which are read again when the prompt comes again."""
        end = length - self._least
        return end if self._stores_ends and start < end else length


def _ends_of_part(prompt: Prompt, starts: Sequence[int], most: int) -> list[int]:
    if prompt.ahead is None:
        return [min(start + most, end) for start, end in zip(starts, prompt.lengths, strict=True)]
    from draftlens.models.prompt_blocks import end_of_part

    return [end_of_part(prompt, row, start, most) for row, start in enumerate(starts)]


def _may_be_divided(backbone: Backbone, prompt: Prompt) -> bool:
    """Whether the keys of a part of a prompt are those of the whole, which they are not where the
    rotary frequencies follow from the length."""
    if not changing_frequencies(backbone.text_config):
        return True
    return reads_with_original(backbone.text_config, int(prompt.position_ids.max()) + 1)


def before_media(visual: Tensor, end: int) -> int:
    """`end`, or the beginning of the run of visual tokens (bool ``[L]``) that it would divide."""
    if not 0 < end < len(visual) or not (visual[end] and visual[end - 1]):
        return end
    text = (~visual[:end]).nonzero()
    return int(text[-1]) + 1 if len(text) else 0


def store(backbone: Backbone, cache: KVCache) -> None:
    """Store the prompts that the rows of a cache hold."""
    for row, held in enumerate(cache.held):
        assert held is not None
        _store_row(backbone, cache, row, held)


def _store_row(backbone: Backbone, cache: KVCache, row: int, held: HeldTokens) -> None:
    """Store the first tokens of a row, and the states after the last of them, if it has any."""
    assert backbone.prompt_cache is not None
    end = () if backbone.states is None else backbone.states.end(cache, row)
    backbone.prompt_cache.store(backbone.model, held, cache, row, end)


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
    _store_row(backbone, cache, row, cached.followed_by(digests))
