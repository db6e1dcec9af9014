"""Attention scores of visual tokens, read during the target's own prefill.

The attention itself is transformers' `sdpa`, exact for every row. For the few text rows only, and
one layer at a time, the softmax is computed once more and summed: there is no map of all tokens by
all tokens, and no second pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftlens.core.errors import UnsupportedModelError

UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias", "block_mask")
"""Arguments of attention that make it another than the softmax of scaled products."""

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
        unknown = [name for name in UNKNOWN_TERMS if kwargs.get(name) is not None]
        if unknown:
            raise UnsupportedModelError(
                f"the attention of {type(module).__name__} has {' and '.join(unknown)}, so it "
                "cannot be read: prune without attention"
            )
        self.add(query, key, query.shape[-1] ** -0.5 if scaling is None else scaling, mask)
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    def add(self, query: Tensor, key: Tensor, scaling: float, mask: Tensor | None = None) -> None:
        """Add one layer's scores: query ``[B, H, T, D]`` of the tokens that the pass reads, key
        ``[B, H', K, D]`` of all tokens so far, H' dividing H, mask as for `sdpa`; None for a causal
        one."""
        scores = torch.zeros(self.visual.shape, dtype=torch.float32, device=self.visual.device)
        for row, readers in enumerate(self.readers):
            if len(readers):
                readers = readers.to(query.device)
                queries = readers - self.starts[row]
                masking = _Masking(readers, queries, None if mask is None else mask[row, 0])
                row_scores = _row_scores(query[row][:, queries], key[row], masking, scaling)
                # A pass over rows of different lengths has keys after the end of this one.
                row_scores = row_scores[: scores.shape[1]]
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


@dataclass(frozen=True)
class _Masking:
    """Which keys the R readers of a row do not attend to.

    Args:
        places: of the readers in the row, int64 ``[R]``.
        queries: their indices in the pass, int64 ``[R]``.
        mask: of the row, ``[T, K]``, boolean or additive; None for a causal one.
    """

    places: Tensor
    queries: Tensor
    mask: Tensor | None

    def hidden(self, readers: Tensor, length: int) -> Tensor:
        """bool ``[S, K]`` for some readers int64 ``[S]`` and K keys."""
        if self.mask is None:
            position = torch.arange(length, device=readers.device)
            return position > self.places[readers, None]
        rows = self.mask[self.queries[readers], :length]
        return ~rows if rows.dtype == torch.bool else rows < 0


def _row_scores(queries: Tensor, key: Tensor, masking: _Masking, scaling: float) -> Tensor:
    """Scores of one layer and row, float32 ``[K]``, in parts that bound the memory: queries
    ``[H, R, D]`` of the R readers, keys ``[H', K, D]``."""
    heads, _, width = queries.shape
    length = key.shape[1]
    total = torch.zeros(length, dtype=torch.float32, device=queries.device)
    readers = torch.arange(queries.shape[1], device=queries.device)
    readers = readers.repeat(heads // key.shape[0])  # [S], for each head of a group
    queries = queries.reshape(key.shape[0], len(readers), width)
    heads_per_part = max(1, BLOCK // (len(readers) * length))
    queries_per_part = max(1, BLOCK // length)
    for head in range(0, key.shape[0], heads_per_part):
        keys = key[head : head + heads_per_part].transpose(1, 2)
        for begin in range(0, len(readers), queries_per_part):
            part = slice(begin, begin + queries_per_part)
            # In float32 from the start: unscaled products exceed the largest float16.
            products = queries[head : head + heads_per_part, part].float() @ keys.float()
            hidden = masking.hidden(readers[part], length)
            weights = (products * scaling).masked_fill_(hidden, -torch.inf).softmax(-1)
            total += weights.sum((0, 1))
    return total
