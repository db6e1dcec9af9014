"""Which keys of a block later blocks may see (SPAVA, section 3.3 and algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import max_pool1d

Choose = Callable[[Tensor, Tensor, int, int, int], Tensor]
"""Chooses the passing keys of one block in one layer; arguments and result of `keys_by_query`."""

NEIGHBOURS = 5
"""Neighbouring keys of a block, an odd number, whose greatest score counts for the one in their
middle, so that chosen keys bring their neighbours."""


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
        Places of the chosen keys, int64 ``[H', count]``, rising for each head of the keys.
    """
    num_heads, _, width = key.shape
    mean = query.float().reshape(num_heads, -1, width).mean(1)
    scores = (key.float() @ mean[:, :, None])[..., 0]
    pooled = max_pool1d(scores[:, None], neighbours, 1, neighbours // 2)[:, 0]
    return pooled.topk(count).indices.sort(-1).values
