"""What FLOPs of the language model promise of a prefill by several hosts."""

from __future__ import annotations

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.ring_attention import Chunks
from spava_parts.formulas import causal, pairs


def linear_flops(target: Backbone) -> float:
    """FLOPs a token of the linear layers of the language model: two for each weight."""
    matrices = [weight for weight in target.decoder.parameters() if weight.ndim > 1]
    weights: int = sum(weight.numel() for weight in matrices) - target.embed.weight.numel()
    return 2.0 * weights


def pair_flops(target: Backbone) -> float:
    """FLOPs of attention for each pair of a query and a key, all heads and layers."""
    config = target.text_config
    heads: int = config.num_attention_heads
    layers: int = config.num_hidden_layers
    width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 4.0 * width * heads * layers


def flops_of(target: Backbone, tokens: int, num_pairs: float) -> float:
    """FLOPs of the language model for some tokens and pairs."""
    return linear_flops(target) * tokens + pair_flops(target) * num_pairs


def full(target: Backbone, prompt: Prompt) -> float:
    """FLOPs of the full prefill by one process."""
    length = prompt.lengths[0]
    return flops_of(target, length, causal(length))


def by_ring(target: Backbone, prompt: Prompt, size: int) -> float:
    """FLOPs of the busiest rank of a ring."""
    length = prompt.lengths[0]
    tokens = max(Chunks(length, rank, size).num_local for rank in range(size))
    return flops_of(target, tokens, causal(length) / size)


def by_spava(target: Backbone, prompt: Prompt, prefill: SpavaPrefill, size: int) -> float:
    """FLOPs of the busiest rank of SPAVA.

    Raises:
        ValueError: the prompt is too short for it.
    """
    (row,) = prefill.rows(prompt)
    if row.blocks is None:
        raise ValueError(row.note)
    shares = [Share(row.blocks, rank, size, prefill.zigzag) for rank in range(size)]
    return max(flops_of(target, share.num_local, pairs(share)) for share in shares)
