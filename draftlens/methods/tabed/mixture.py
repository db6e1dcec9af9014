"""Mixtures of distributions, and how far distributions are from each other.

Symbols as in TABED (Algorithm 1): p the target's distribution, q_v the draft's in view v, w the
weights, q_w = sum of w_v q_v their mixture. m is the number of views.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError


def log_mixture(log_probs: Tensor, log_weights: Tensor) -> Tensor:
    """The logarithm of sum over views of w_v q_v.

    Args:
        log_probs: log q_v, float ``[B, m, M, V]``.
        log_weights: log w, float ``[B, m, M]``; minus infinity for views that do not count.

    Returns:
        ``[B, M, V]``. Where one view has all the weight these are its values, unchanged.
    """
    weighted = log_probs + log_weights[..., None].to(log_probs)
    return weighted.logsumexp(1)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats, ``[...]``, of log probabilities ``[..., V]``.

    It is infinite where q is 0 and p is not. Where p is 0, nothing is added.
    """
    p = log_p.exp()
    terms = p * (log_p - log_q)
    return torch.where(p > 0, terms, torch.zeros_like(terms)).sum(-1)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """TV(p, q) = sum of |p - q| / 2, from 0 to 1, ``[...]``, of log probabilities ``[..., V]``.

    1 - TV is the chance that rejection sampling accepts a token drawn from q.
    """
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


MOST_WEIGHTS = 10_000
"""Most points of a grid of weights, of which each is scored at every token."""


@lru_cache
def weight_grid(num_views: int, steps: int) -> Tensor:
    """All weights that are multiples of ``1 / steps``, float64 ``[G, m]``.

    For two views and 10 steps these are the (1 - j/10, j/10) of TABED, by rising j.

    Example:

        >>> weight_grid(2, 2).tolist()
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    if comb(steps + num_views - 1, num_views - 1) > MOST_WEIGHTS:
        raise ConfigError(
            f"steps must be so few that {num_views} views have at most {MOST_WEIGHTS} weights, "
            f"not {steps}"
        )
    return torch.tensor(_compositions(num_views, steps), dtype=torch.float64) / steps


def _compositions(parts: int, total: int) -> list[list[int]]:
    """All lists of `parts` whole numbers from 0 on that sum to `total`, the largest first part
    first."""
    if parts == 1:
        return [[total]]
    return [
        [first, *rest]
        for first in range(total, -1, -1)
        for rest in _compositions(parts - 1, total - first)
    ]
