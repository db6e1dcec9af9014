"""Attention scores of visual tokens, read during the target's own prefill.

The attention itself is transformers' `sdpa`, exact for every row. For the few text rows only, and
one layer at a time, the softmax is computed once more and summed: there is no map of all tokens by
all tokens, and no second pass.
"""

from __future__ import annotations

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
    row. `by_layer` has the scores so far, float32 ``[B, L]``, zero at text and padding.
    """

    def __init__(self, visual: Tensor, lengths: list[int]) -> None:
        self.visual = visual
        self.by_layer: list[Tensor] = []
        position = torch.arange(visual.shape[1], device=visual.device)
        is_real = position < torch.tensor(lengths, device=visual.device)[:, None]
        reads = (visual.cumsum(1) > 0) & ~visual & is_real
        self.readers = [row.nonzero()[:, 0] for row in reads]

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
        self.add(query, key, query.shape[-1] ** -0.5 if scaling is None else scaling)
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    def add(self, query: Tensor, key: Tensor, scaling: float) -> None:
        """Add one layer's scores: query ``[B, H, L, D]``, key ``[B, H', L, D]``, H' dividing H."""
        scores = torch.zeros(self.visual.shape, dtype=torch.float32, device=self.visual.device)
        for row, readers in enumerate(self.readers):
            if len(readers):
                readers = readers.to(query.device)
                scores[row] = self._row_scores(query[row], key[row], readers, scaling)
        self.by_layer.append(scores * self.visual)

    def _row_scores(self, query: Tensor, key: Tensor, readers: Tensor, scaling: float) -> Tensor:
        """Scores of one layer and row, float32 ``[L]``, in parts that bound the memory."""
        heads, length, width = query.shape
        groups = heads // key.shape[0]
        total = torch.zeros(length, dtype=torch.float32, device=query.device)
        last_visible = readers.repeat(groups)  # [S], for each reader and head of a group
        queries = query[:, readers].reshape(key.shape[0], len(last_visible), width)
        position = torch.arange(length, device=query.device)
        heads_per_part = max(1, BLOCK // (len(last_visible) * length))
        queries_per_part = max(1, BLOCK // length)
        for head in range(0, key.shape[0], heads_per_part):
            keys = key[head : head + heads_per_part].transpose(1, 2)
            for begin in range(0, len(last_visible), queries_per_part):
                part = slice(begin, begin + queries_per_part)
                # In float32 from the start: unscaled products exceed the largest float16.
                products = queries[head : head + heads_per_part, part].float() @ keys.float()
                hidden = position > last_visible[part, None]
                weights = (products * scaling).masked_fill_(hidden, -torch.inf).softmax(-1)
                total += weights.sum((0, 1))
        return total.to(self.visual.device)

    def result(self) -> Tensor:
        """The scores, float32 ``[B, L]``, zero at text and padding."""
        scores = torch.zeros(self.visual.shape, dtype=torch.float32, device=self.visual.device)
        for layer_scores in self.by_layer:
            scores += layer_scores
        return scores
