"""XAttention (Xu et al. 2025): blocks of attention chosen by sums over their antidiagonals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from .masked import Chosen, block_order


@dataclass(frozen=True)
class XAttention:
    """Chooses the fewest blocks that hold a share of the estimated attention of their queries.

    Implemented: the estimate by every `stride`-th antidiagonal; the choice by a threshold, with the
    first block and the diagonal always. Not implemented: thresholds that are searched for each
    head.

    Args:
        stride: distance of antidiagonals; the paper of SPAVA has 16.
        threshold: share of the attention; 0.9 in the authors' estimate.
        block: tokens of a block, a multiple of the stride.
    """

    stride: int = 16
    threshold: float = 0.9
    block: int = 128

    @property
    def query_block(self) -> int:
        """See `Rule.query_block`."""
        return self.block

    @property
    def key_block(self) -> int:
        """See `Rule.key_block`."""
        return self.block

    def choose(self, query: Tensor, key: Tensor, scaling: float) -> Chosen:
        """See `Rule.choose`."""
        heads, length, width = query.shape
        estimate = self.estimate(query, key, scaling)
        num_strides = -(-length // self.stride)
        return Chosen(self._chosen(estimate), 2 * heads * num_strides**2 * self.stride * width)

    def estimate(self, query: Tensor, key: Tensor, scaling: float) -> Tensor:
        """Estimated attention of each block of queries to each block of keys, ``[H, B, B]``; the
        rows sum to the number of strides in a block of queries.

        A square of `stride` queries and keys has one score, the mean of the products on its
        antidiagonal, and the softmax is over these.
        """
        heads, length, width = query.shape
        rest = -length % self.block
        num_strides = (length + rest) // self.stride
        shape = (heads, num_strides, self.stride, width)
        queries = pad(query, (0, 0, 0, rest)).view(shape).flip(2)
        keys = pad(key, (0, 0, 0, rest)).view(shape)
        products = queries.flatten(2) @ keys.flatten(2).transpose(1, 2)
        places = torch.arange(num_strides)
        hidden = places > places[:, None]
        scores = (products * scaling / self.stride).masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        weights[:, -(-length // self.stride) :] = 0
        per_block = self.block // self.stride
        grouped = weights.view(heads, -1, per_block, num_strides // per_block, per_block)
        return grouped.sum((2, 4))

    def _chosen(self, estimate: Tensor) -> Tensor:
        """The blocks that are needed for the threshold, bool ``[H, B, B]``."""
        count = estimate.shape[-1]
        always = torch.eye(count, dtype=torch.bool)
        always[:, 0] = True
        fixed = estimate.masked_fill(~always, 0.0).sum(-1, keepdim=True)
        others = estimate.masked_fill(always, 0.0)
        falling, order = others.sort(-1, descending=True)
        before = fixed + falling.cumsum(-1) - falling
        is_needed = before < self.threshold * estimate.sum(-1, keepdim=True)
        kept = torch.zeros_like(estimate, dtype=torch.bool).scatter(-1, order, is_needed)
        return (kept | always) & block_order(count, count, self.block, self.block)
