"""SpargeAttn (Zhang et al. 2025): blocks of attention chosen by the means of similar tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .masked import Chosen, block_order


@dataclass(frozen=True)
class Sparge:
    """Chooses blocks by the attention between the means of blocks of queries and of keys.

    Blocks whose tokens are unlike each other have no telling mean and are always computed.

    Implemented: the prediction of blocks, over keys without their mean as in the authors' code. Not
    implemented: the second filter inside the kernel, which skips products of weights and values,
    and quantization.

    Args:
        similarity: mean cosine of the tokens of a block above which its mean counts for it.
        share: of the predicted attention that is computed.
        queries, keys: tokens of a block.
    """

    similarity: float = 0.3
    share: float = 0.96
    queries: int = 128
    keys: int = 64

    @property
    def query_block(self) -> int:
        """See `Rule.query_block`."""
        return self.queries

    @property
    def key_block(self) -> int:
        """See `Rule.key_block`."""
        return self.keys

    def choose(self, query: Tensor, key: Tensor, scaling: float) -> Chosen:
        """See `Rule.choose`."""
        heads, length, width = query.shape
        asked, asked_alike = self._means(query, self.queries)
        known, known_alike = self._means(key - key.mean(1, keepdim=True), self.keys)
        order = block_order(asked.shape[1], known.shape[1], self.queries, self.keys)
        scores = asked @ known.transpose(1, 2) * scaling
        hidden = ~order | ~known_alike[:, None]
        # Rows in which no block has a telling mean keep all that they see.
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
        falling, places = weights.sort(-1, descending=True)
        is_needed = falling.cumsum(-1) <= self.share
        is_needed[..., 0] = True
        kept = torch.zeros_like(order).expand_as(scores).scatter(-1, places, is_needed)
        kept = (kept | ~known_alike[:, None] | ~asked_alike[:, :, None]) & order
        # A sum of states and one of their directions, of queries and of keys.
        means = 4 * heads * length * width
        return Chosen(kept, means + 2 * heads * width * asked.shape[1] * known.shape[1])

    def _means(self, states: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Mean of each block, ``[H, B, D]``, and whether its tokens are alike, bool ``[H, B]``."""
        means = []
        cosines = []
        for block in torch.split(states, size, 1):
            means.append(block.mean(1))
            # The mean of all cosines is the square of the mean direction.
            cosines.append(normalize(block, dim=-1).mean(1).square().sum(-1))
        return torch.stack(means, 1), torch.stack(cosines, 1) > self.similarity
