"""Prompts with a chosen part of their visual tokens."""

from __future__ import annotations

from torch import Tensor


def kept_indices(visual: Tensor, choice: Tensor) -> Tensor:
    """Indices of all text tokens and of some visual tokens, as `draftlens.models.prompt_subset`
    expects them.

    Args:
        visual: whether each token of a row is visual, bool ``[L]``.
        choice: the visual tokens to keep, as indices among the n visual tokens, int64 ``[K]``.

    Returns:
        Rising indices of tokens, int64 ``[L - n + K]``.
    """
    positions = visual.nonzero()[:, 0]
    mask = ~visual
    mask[positions[choice]] = True
    return mask.nonzero()[:, 0]
