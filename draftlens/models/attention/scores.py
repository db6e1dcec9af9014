"""Attention scores of visual tokens, read during the target's own prefill.

The attention itself is transformers' `sdpa`, exact for every row. For the few text rows only, and
one layer at a time, the softmax is computed once more and summed: there is no map of all tokens by
all tokens, and no second pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

BLOCK = 1 << 24
"""Most scores formed at once (64 MiB in float32), or else those of one query and head."""


class AttentionProbe:
    """An `AttentionPass` that measures eq. 4 and 5 of SpecVLM, up to a constant factor.

    For every visual token j (bool ``[B, L]``) the score is the sum over layers, heads and readers i
    of softmax(q_i K^T)_j. The readers are all text tokens after the first visual token of their
    row that the pass reads. `by_layer` has the scores so far, float32 ``[B, L]``, zero at text and
    padding.

    A prompt may be read in several passes: call `begin_part` before each but the first, and their
    scores are added up.
    """

    def __init__(self, visual: Tensor, lengths: list[int]) -> None:
        self.visual = visual
        self.by_layer: list[Tensor] = []
        self._num_added = 0  # layers of this pass
        self.begin_part([0] * len(lengths), lengths)

    def begin_part(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Let the next pass read each row's tokens from one index up to another."""
        device = self.visual.device
        position = torch.arange(self.visual.shape[1], device=device)
        first = torch.tensor(starts, device=device)[:, None]
        is_read = (position >= first) & (position < torch.tensor(ends, device=device)[:, None])
        reads = (self.visual.cumsum(1) > 0) & ~self.visual & is_read
        self.readers = [row.nonzero()[:, 0] for row in reads]
        self.starts = list(starts)
        self._num_added = 0

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        scaling = kwargs.get("scaling")
        self.add(query, key, query.shape[-1] ** -0.5 if scaling is None else scaling, mask)
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    def add(self, query: Tensor, key: Tensor, scaling: float, mask: Tensor | None = None) -> None:
        """Add one layer's scores: query ``[B, H, T, D]`` of the tokens that the pass reads, key
        ``[B, H', K, D]`` of all tokens so far, H' dividing H, mask as for `sdpa`, None for a causal
        one."""
        scores = torch.zeros(self.visual.shape, dtype=torch.float32, device=self.visual.device)
        for row, readers in enumerate(self.readers):
            if len(readers):
                readers = readers.to(query.device)
                queries = readers - self.starts[row]
                row_query = query[row][:, queries]
                if mask is None:
                    places = torch.arange(key.shape[2], device=query.device)
                    hidden = places > readers[:, None]
                else:
                    hidden = mask[min(row, len(mask) - 1), 0, queries, : key.shape[2]]
                    hidden = ~hidden if mask.dtype == torch.bool else hidden < 0
                # A pass over rows of different lengths has keys after the end of this one.
                row_scores = _row_scores(row_query, key[row], hidden, scaling)[: scores.shape[1]]
                scores[row, : len(row_scores)] = row_scores.to(scores.device)
        scores *= self.visual
        if self._num_added < len(self.by_layer):
            self.by_layer[self._num_added] += scores
        else:
            self.by_layer.append(scores)
        self._num_added += 1

    def result(self) -> Tensor:
        """The scores, float32 ``[B, L]``, zero at text and padding."""
        scores = torch.zeros(self.visual.shape, dtype=torch.float32, device=self.visual.device)
        for layer_scores in self.by_layer:
            scores += layer_scores
        return scores


def _row_scores(queries: Tensor, key: Tensor, hidden: Tensor, scaling: float) -> Tensor:
    """Scores of one layer and row, float32 ``[K]``, in parts that bound the memory: queries
    ``[H, R, D]`` of the R readers, keys ``[H', K, D]``, which of these each reader does not attend
    to, bool ``[R, K]``."""
    heads, _, width = queries.shape
    length = key.shape[1]
    total = torch.zeros(length, dtype=torch.float32, device=queries.device)
    group = heads // key.shape[0]
    queries = queries.reshape(key.shape[0], group * len(hidden), width)
    reader = torch.arange(len(hidden), device=queries.device).repeat(group)
    heads_per_part = max(1, BLOCK // (len(reader) * length))
    queries_per_part = max(1, BLOCK // length)
    for head in range(0, key.shape[0], heads_per_part):
        keys = key[head : head + heads_per_part].transpose(1, 2)
        for begin in range(0, len(reader), queries_per_part):
            part = slice(begin, begin + queries_per_part)
            # In float32 from the start: unscaled products exceed the largest float16.
            products = queries[head : head + heads_per_part, part].float() @ keys.float()
            weights = (products * scaling).masked_fill_(hidden[reader[part]], -torch.inf)
            weights = weights.softmax(-1)
            total += weights.sum((0, 1))
    return total
