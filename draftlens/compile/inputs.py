"""The inputs of a compiled pass, and the check that it computes what the model does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache

Forward = Callable[[Tensor, Tensor, KVCache, Tensor | None], Tensor | None]
"""Computes the logits of a pass from tokens, positions, cache and mask, as `Passes.run` does."""


def inputs_of(
    tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
) -> list[Tensor] | None:
    """The inputs of `StaticPass.forward`, lists unpacked, of a forward over a cache, which gets
    room for the tokens. None if it has no buffers yet, or has no room and must not grow."""
    width = tokens.shape[1]
    reach = max(cache.lengths) + width
    buffers = cache.whole_buffers(reach)
    if buffers is None:
        return None
    keys, values = buffers
    if mask is None:
        mask = tokens.new_ones((len(tokens), 1, width, reach), dtype=torch.bool)
    leading = (tokens, position_ids, slots_of(cache.lengths, width, tokens.device), mask)
    return [*(tensor.contiguous() for tensor in leading), *keys, *values]


def slots_of(lengths: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Where the next tokens of each row are written, int64 ``[B, T]``."""
    if len(lengths) == 1:
        return torch.arange(lengths[0], lengths[0] + width, device=device)[None]
    return torch.tensor(lengths, device=device)[:, None] + torch.arange(width, device=device)


@torch.inference_mode()
def check_pass(
    backbone: Backbone,
    forward: Forward,
    rows: int,
    width: int,
    axes: tuple[int, ...],
    bound: float | None = None,
) -> None:
    """Compare another way to compute a forward with the model's modules, on some tokens after a
    prompt of two.

    Args:
        backbone: the model.
        forward: what is checked.
        rows, width: size of the pass.
        axes: leading sizes of its positions: empty, or the axes of M-RoPE.
        bound: of differences, relative to the largest logit; None for the dtype's rounding.

    Raises:
        UnsupportedModelError: their logits differ.
    """
    ids = torch.arange(1, 1 + rows * (2 + width), device=backbone.device).reshape(rows, -1)
    ids = ids % backbone.vocab_size
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, room=width)
    backbone.prefill(prompt, cache)
    steps = torch.arange(width, device=backbone.device).expand(rows, -1)
    positions = prompt.positions(steps).expand(*axes, rows, width)
    causal = torch.ones(width, width, dtype=torch.bool, device=backbone.device).tril()
    mask = trees.attention_mask([2] * rows, causal)
    logits = forward(ids[:, 2:], positions, cache, mask)
    assert logits is not None
    expected = backbone.forward_modules(ids[:, 2:], positions, cache, mask)
    if bound is None:
        bound = 1e-4 if expected.dtype == torch.float32 else 5e-2
    difference = float((logits - expected).abs().max())
    if not difference <= bound * float(expected.abs().max().clamp_min(1e-6)):
        raise UnsupportedModelError(
            f"its logits differ from those of the model by {difference:.3g}"
        )
