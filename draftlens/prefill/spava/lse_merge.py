"""Attention to parts of the keys, merged into attention to all of them.

Softmax over a union of keys follows from the softmax over each part and its log-sum-exp:
out = Σ_i w_i out_i with w_i = exp(lse_i - lse), lse = log Σ_i exp(lse_i) (Milakov and Gimelshein
2018; eq. 5 of SPAVA). Everything is computed relative to the largest log-sum-exp, so nothing
overflows, and a part that saw no key has the log-sum-exp -inf and the weight 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Attention of some queries to a part of their keys.

    Args:
        out: ``[..., T, D]`` in any floating dtype; anything where a query saw no key.
        lse: logarithm of the sum of the exponentials of the scaled products, float32 or float64
            ``[..., T]``; -inf where a query saw no key.
    """

    out: Tensor
    lse: Tensor


def merge_parts(parts: Sequence[Part]) -> Part:
    """Merge parts of disjoint sets of keys and the same queries, at least one. The output has the
    dtype of the log-sum-exp, and zeros where no part saw a key."""
    return merge_stacked(
        torch.stack([part.out for part in parts]), torch.stack([part.lse for part in parts])
    )


def merge_stacked(outs: Tensor, lses: Tensor) -> Part:
    """`merge` of parts in tensors ``[P, ..., T, D]`` and ``[P, ..., T]``."""
    largest = lses.amax(0)
    base = torch.where(largest.isneginf(), 0.0, largest)
    weights = torch.exp(lses - base)
    # The largest part contributes 1, so the total is below 1 only where nothing was seen.
    total = weights.sum(0)
    shares = weights / total.clamp_min(1.0)
    out = (shares[..., None] * _where_seen(outs, weights)).sum(0)
    return Part(out, base + total.log())


def merge_running(first: Part, second: Part) -> Part:
    """`merge` of two parts, for parts that arrive one after the other."""
    lse = torch.logaddexp(first.lse, second.lse)
    base = torch.where(lse.isneginf(), 0.0, lse)
    first_share = torch.exp(first.lse - base)
    second_share = torch.exp(second.lse - base)
    out = first_share[..., None] * _where_seen(first.out, first_share)
    out = out + second_share[..., None] * _where_seen(second.out, second_share)
    return Part(out, lse)


def _where_seen(out: Tensor, weights: Tensor) -> Tensor:
    """The output in the weights' dtype, zeroed where the weight is 0, since 0 x NaN is NaN."""
    return torch.where(weights[..., None] > 0, out.to(weights.dtype), 0.0)
