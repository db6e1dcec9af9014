"""Attention weights of a few tokens of one row, computed beside transformers' own attention."""

from __future__ import annotations

import torch
from torch import Tensor


def reader_attention(query: Tensor, key: Tensor, readers: Tensor, scaling: float) -> Tensor:
    """Attention of some tokens to all keys, the mean over heads, float32 ``[R, K]``.

    One head at a time, so that memory stays bounded.

    Args:
        query: ``[H, T, D]``.
        key: ``[H', K, D]`` with H' dividing H (grouped queries); the queries are of its last T
            tokens.
        readers: the tokens as indices into the queries, int64 ``[R]``.
    """
    num_heads, num_queries, _ = query.shape
    num_keys = key.shape[1]
    readers = readers.to(query.device)
    last_visible = readers[:, None] + (num_keys - num_queries)
    hidden = torch.arange(num_keys, device=query.device) > last_visible
    heads_per_key = num_heads // key.shape[0]
    total = torch.zeros(len(readers), num_keys, dtype=torch.float32, device=query.device)
    for head in range(num_heads):
        products = query[head, readers].float() @ key[head // heads_per_key].float().T
        total += (products * scaling).masked_fill_(hidden, -torch.inf).softmax(-1)
    return total / num_heads


def scaling_of(query: Tensor, scaling: float | None) -> float:
    """The factor of the products: D^-0.5 where transformers passes none."""
    return float(query.shape[-1] ** -0.5) if scaling is None else scaling
