"""Which keys of a block later blocks may see (SPAVA, section 3.3 and algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from draftlens.pruning.base import order_sample

Choose = Callable[[Tensor, Tensor, int, int, int], Tensor]
"""Chooses the passing keys of one block in one layer, as `keys_by_query`."""

NEIGHBOURS = 5
"""Odd window of the maximum over neighbouring scores: chosen keys bring their neighbours."""


def keys_by_query(
    query: Tensor, key: Tensor, count: int, layer: int, block: int, neighbours: int = NEIGHBOURS
) -> Tensor:
    """The keys with the greatest products with the question.

    The queries are averaged over the tokens of the question and over the heads that share a key, so
    each key has one score (`experiments_spava` of thunlp/APB).

    Args:
        query: queries of the question, rotated, ``[H, A, D]`` with at least one token.
        key: keys of the block, rotated, ``[H', K, D]`` with H' dividing H.
        count: l_p, at most K.
        layer, block: their numbers, from 0, on which the keys of other rules depend.
        neighbours: see `NEIGHBOURS`.

    Returns:
        Indices of the chosen keys, int64 ``[H', count]``, rising for each head of the keys.
    """
    num_heads, _, width = key.shape
    mean = query.float().reshape(num_heads, -1, width).mean(1)
    scores = (key.float() @ mean[:, :, None])[..., 0]
    pooled = max_pool1d(scores[:, None], neighbours, 1, neighbours // 2)[:, 0]
    return pooled.topk(count).indices.sort(-1).values


def sampled_keys(query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
    """Half of the keys by `keys_by_query`, and half spread over the block, other ones for each head
    and layer (`order_sample`)."""
    num_heads, num_keys = key.shape[:2]
    chances = key.new_ones(num_heads, num_keys)
    chances.scatter_(1, keys_by_query(query, key, count // 2, layer, block), torch.inf)
    heads = torch.arange(layer * num_heads, (layer + 1) * num_heads)
    heads, places = torch.meshgrid(heads, torch.arange(num_keys), indexing="ij")
    points = torch.stack([places, heads, torch.full_like(heads, block)], -1).to(key.device)
    return order_sample(chances, points, count, start=0)


SELECTS: Mapping[str, Choose] = {"query": keys_by_query, "sampled": sampled_keys}
"""How passing keys are chosen, by name."""
