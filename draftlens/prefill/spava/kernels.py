"""Attention with its log-sum-exp, by the kernels of torch.

Every call is either unmasked or square and causal. Masks are avoided on purpose: on the CPU a query
whose keys are all masked gets the log-sum-exp 0 instead of -inf, and rectangular causal attention
is aligned to the top left in some kernels and to the bottom right in others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from draftlens.prefill.spava.lse_merge import Part

Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], Part]

HALF = (torch.float16, torch.bfloat16)


def attend(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool = False) -> Part:
    """Attention of all queries to all keys, or to those up to their own index.

    Args:
        query: ``[H, T, D]``.
        key: ``[H', K, D]`` with H' dividing H (grouped queries).
        value: ``[H', K, E]``.
        scaling: factor of the products.
        causal: query t attends to keys 0 to t; T and K are equal.

    Returns:
        Output ``[H, T, E]`` and log-sum-exp float32 ``[H, T]``. Queries without keys have zeros and
        -inf.
    """
    if not query.shape[1] or not key.shape[1]:
        return nothing_seen(query, value)
    kernel = _KERNELS.get(query.device.type, attend_by_formula)
    if not _fits(query, key, value):
        kernel = attend_by_formula
    return kernel(query, key, value, scaling, causal)


def nothing_seen(query: Tensor, value: Tensor) -> Part:
    """The result without any keys, for which the kernels of the CPU end the process."""
    heads, num_queries = query.shape[:2]
    out = query.new_zeros(heads, num_queries, value.shape[-1])
    return Part(out, out.new_full((heads, num_queries), -torch.inf, dtype=torch.float32))


def attend_by_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    causal: bool = False,
    visible: Tensor | None = None,
) -> Part:
    """`attend` for devices and dtypes without a kernel, and for few keys under a mask `visible`,
    bool ``[T, K]`` with at least one key per query; the reference of the kernels."""
    heads, num_queries, width = query.shape
    groups = key.shape[0]
    precise = torch.float64 if query.dtype == torch.float64 else torch.float32
    grouped = query.reshape(groups, heads // groups, num_queries, width).to(precise)
    scores = (grouped @ key[:, None].transpose(-1, -2).to(precise)) * scaling
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    lse = scores.logsumexp(-1)
    out = torch.exp(scores - lse[..., None]) @ value[:, None].to(precise)
    out = out.reshape(heads, num_queries, -1).to(query.dtype)
    return Part(out, lse.reshape(heads, num_queries))


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernels take these: keys and values of one width, no float64."""
    return key.shape[-1] == value.shape[-1] and query.dtype != torch.float64


def _on_cpu(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> Part:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query[None], key[None], value[None], 0.0, causal, scale=scaling
    )
    return Part(out[0], lse[0])


def _on_cuda(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> Part:
    num_queries = query.shape[1]
    repeats = query.shape[0] // key.shape[0]
    # These kernels take as many heads of keys as of queries.
    key = key.repeat_interleave(repeats, 0)
    value = value.repeat_interleave(repeats, 0)
    if query.dtype in HALF and query.shape[-1] % 8 == 0:
        results = torch.ops.aten._scaled_dot_product_flash_attention(
            query[None], key[None], value[None], 0.0, causal, False, scale=scaling
        )
    else:
        results = torch.ops.aten._scaled_dot_product_efficient_attention(
            query[None], key[None], value[None], None, True, 0.0, causal, scale=scaling
        )
    # The efficient kernel pads the queries of the log-sum-exp to a multiple of 32.
    return Part(results[0][0], results[1][0, :, :num_queries])


_KERNELS: Mapping[str, Kernel] = {"cpu": _on_cpu, "cuda": _on_cuda}
