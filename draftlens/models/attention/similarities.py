"""Similarity of visual tokens to the text, from the hidden states of a pass.

Cosines sum: Σ_j cos(V_i, X_j) = v · Σ_j x_j with v and x_j of length 1. So one matrix-vector
product per row suffices, without a map of all visual tokens by all text tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 1 << 24
"""Most elements of hidden states converted to float32 at once (64 MiB), at least one token's."""


def similarity(states: Tensor, visual: Tensor, lengths: list[int], text: str) -> Tensor:
    """Equation 2 of ParallelVLM, summed over the text tokens of each row.

    Args:
        states: hidden states of a pass, ``[B, L, D]``; anything at padding, which comes last.
        visual: which tokens represent pixels, bool ``[B, L]``.
        text: `"all"` or `"after"`, see `core.prefill_readings.Similarity`.

    Returns:
        float32 ``[B, L]`` on the device of `visual`, zero at text and padding, and in rows without
        visual tokens or without such text.
    """
    result = torch.zeros(visual.shape, dtype=torch.float32, device=visual.device)
    for row, length in enumerate(lengths):
        is_visual = visual[row, :length]
        is_text = ~is_visual
        if text == "after":
            is_text = is_text & (is_visual.cumsum(0) > 0)
        places = is_visual.nonzero()[:, 0]
        words = is_text.nonzero()[:, 0]
        result[row, places] = _row_similarity(states[row], places, words).to(result.device)
    return result


def _row_similarity(states: Tensor, places: Tensor, words: Tensor) -> Tensor:
    """Sum of the cosines of some tokens ``[m]`` with some others ``[n]``, float32 ``[m]``."""
    tokens_per_part = max(1, BLOCK // states.shape[1])
    direction = states.new_zeros(states.shape[1], dtype=torch.float32)
    for part in torch.split(words.to(states.device), tokens_per_part):
        direction = direction + _directions(states, part).sum(0)
    parts = torch.split(places.to(states.device), tokens_per_part)
    return torch.cat([_directions(states, part) @ direction for part in parts])


def _directions(states: Tensor, tokens: Tensor) -> Tensor:
    """The states of some tokens at length 1, float32 ``[m, D]``."""
    return normalize(states[tokens].float(), dim=-1)
