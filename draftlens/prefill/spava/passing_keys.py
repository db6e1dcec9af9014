"""Which keys of a block later blocks may see (SPAVA, section 3.3 and algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d


class Choice(Protocol):
    """Chooses the passing keys of one block in one layer."""

    def places(self, query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
        """Places of the chosen keys, int64 ``[H', count]``, rising for each head of the keys.

        Args:
            query: queries of the question, rotated, ``[H, A, D]`` with at least one token.
            key: keys of the block, rotated, ``[H', K, D]`` with H' dividing H.
            count: l_p, at most K.
            layer, block: their numbers, from 0.
        """
        ...


@dataclass(frozen=True)
class ByQuery:
    """The keys that the question likes best.

    The queries are averaged over the tokens of the question and over the heads that share a key, so
    one product for each key says how well it is liked (`experiments_spava` of thunlp/APB).

    Args:
        pool: number of neighbouring keys, odd, whose greatest score counts for the one in their
            middle, so that chosen keys bring their neighbours. 1 for none. Neighbours are of the
            same block.
    """

    pool: int = 5

    def places(self, query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
        """See `Choice.places`."""
        num_heads, _, width = key.shape
        asked = query.float().reshape(num_heads, -1, width).mean(1)
        scores = (key.float() @ asked[:, :, None])[..., 0]
        pooled = max_pool1d(scores[:, None], self.pool, 1, self.pool // 2)[:, 0]
        return pooled.topk(count).indices.sort(-1).values


@dataclass(frozen=True)
class ByChance:
    """Any keys, the same in every run.

    Args:
        seed: of the choice.
    """

    seed: int = 0

    def places(self, query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
        """See `Choice.places`."""
        num_heads, num_keys = key.shape[:2]
        generator = torch.Generator().manual_seed((self.seed << 32) + (layer << 16) + block)
        order = torch.rand(num_heads, num_keys, generator=generator)
        return order.topk(count).indices.sort(-1).values.to(key.device)


@dataclass(frozen=True)
class Evenly:
    """Keys at equal distances, the same for all heads."""

    def places(self, query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
        """See `Choice.places`."""
        num_heads, num_keys = key.shape[:2]
        places = torch.arange(count, device=key.device) * num_keys // max(count, 1)
        return places.expand(num_heads, -1)
