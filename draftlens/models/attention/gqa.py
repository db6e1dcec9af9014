"""Attention of grouped queries under a mask, without a copy of the keys and values for every query.

With a mask (passes over several draft tokens), transformers' `sdpa` copies keys and values once for
each query head of a group, in every layer: after thousands of visual tokens that takes several
times as long as the attention itself. Kernels of the CPU read the same keys for all queries of a
group, with bit-identical results. On other devices, where that is slow, the queries of a group
become further queries of one head, as in transformers' passes over one token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

_UNUSUAL = ("position_bias", "softcap", "cache")
"""With any of these arguments, `sdpa_attention_forward` itself is called."""


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Any:
    is_usual = not kwargs.get("dropout") and all(kwargs.get(name) is None for name in _UNUSUAL)
    if mask is None or mask.shape[1] > 1 or query.shape[1] == key.shape[1] or not is_usual:
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    out = attend_in_groups(query, key, value, mask, kwargs.get("scaling"))
    return out.transpose(1, 2).contiguous(), None


def attend_in_groups(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attention ``[B, H, T, E]``: query ``[B, H, T, D]``, key ``[B, H', K, D]``, value
    ``[B, H', K, E]``, mask bool ``[B, 1, T, K]``, scaling None for one over the root of D."""
    is_single = query.shape[2] == 1  # transformers packs it, too
    if query.device.type == "cpu" and not is_single and key.shape[-1] == value.shape[-1]:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
        )
    return attend_packed(query, key, value, mask, scaling)


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """`attend_in_groups` with the queries of a group as queries of one head."""
    rows, heads, num_queries, width = query.shape
    shared = heads // key.shape[1]
    packed = query.reshape(rows, key.shape[1], shared * num_queries, width)
    masks = mask.repeat(1, 1, shared, 1)
    out = scaled_dot_product_attention(packed, key, value, attn_mask=masks, scale=scaling)
    return out.reshape(rows, heads, num_queries, value.shape[-1])
