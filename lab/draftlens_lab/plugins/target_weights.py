"""Rules that weigh views by the target's distributions (TABED, section 5.1 and appendix B.2).

Symbols as in TABED (Algorithm 1): p the target's distribution, q_v the draft's in view v, w the
weights, q_w = sum of w_v q_v their mixture. m is the number of views.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.weights import (
    Seen,
    is_number,
    log_mixture,
    log_shares,
    normalized,
)

CRITERIA = ("matches", "kl", "tvd")

FORMS = ("softmax", "inverse")

SMALLEST = 1e-6  # A summed divergence counts as at least this, so that its inverse is finite.

MOST_WEIGHTS = 10_000  # Points of a grid of weights, at most: each is scored at every token.


def check_window(window: Any) -> None:
    """Raise `ConfigError` unless `window` is None or a number of positions."""
    if window is not None and (type(window) is not int or window < 1):
        raise ConfigError(f"window is a number of positions from 1 on, or None, not {window!r}")


class WindowSums:
    """Sums of K numbers per position over the last `window` (h) positions; None for all."""

    def __init__(self, size: int, window: int | None) -> None:
        self.size = size
        self.is_empty = True
        self._all = torch.zeros(size, dtype=torch.float64)
        self._latest: deque[Tensor] | None = None if window is None else deque(maxlen=window)

    @property
    def total(self) -> Tensor:
        """The sums, float64 ``[K]``."""
        if self._latest is None:
            return self._all
        if not self._latest:
            return torch.zeros(self.size, dtype=torch.float64)
        return torch.stack(tuple(self._latest)).sum(0)

    def add(self, values: Tensor) -> None:
        """Add the numbers of a position, ``[K]``."""
        self.is_empty = False
        if self._latest is None:
            self._all = self._all + values
        else:
            self._latest.append(values)


class GridTally:
    """Matches and divergences of every point of a grid, float64 ``[G, m]``. With the criterion
    `"matches"` these decide, and divergences only between equal points."""

    def __init__(self, grid: Tensor, criterion: str, window: int | None) -> None:
        self.grid = grid
        self.by_matches = criterion == "matches"
        self.divergence = total_variation if criterion == "tvd" else kl_divergence
        self.sums = WindowSums(2 * len(grid), window)

    @property
    def log_weights(self) -> list[float]:
        """Uniform before anything was observed."""
        matches, divergence = self.sums.total.view(2, -1)
        if self.sums.is_empty:
            return log_shares([1.0] * self.grid.shape[1])
        candidates = torch.ones_like(matches, dtype=torch.bool)
        if self.by_matches:
            candidates = matches == matches.max()
        cost = torch.where(candidates, divergence, torch.inf)
        if not bool(cost.isfinite().any()):  # each point lacks a token that the target may choose
            cost = torch.where(candidates, 0.0, torch.inf)
        return log_shares(self.grid[int(cost.argmin())].tolist())

    def observe(self, seen: Seen) -> None:
        assert seen.log_probs is not None
        assert seen.log_target is not None
        log_probs = seen.log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        points = self.grid.log().to(log_probs)[:, :, None]  # G rows with one node each
        expanded = log_probs[None, :, None].expand(len(self.grid), -1, -1, -1)
        log_mixed = log_mixture(expanded, points)[:, 0]
        matches = _matches(log_mixed, seen)
        divergence = self.divergence(seen.log_target, log_mixed)
        self.sums.add(torch.cat([matches.double(), divergence.double()]).cpu())


def _matches(log_mixed: Tensor, seen: Seen) -> Tensor:
    """How far each mixture ``[G, V]`` would have made the target's choice: 1 or 0, or under
    rejection sampling the chance of acceptance, the sum of min(p, q_w)."""
    if seen.rejects:
        assert seen.log_target is not None
        return torch.minimum(log_mixed.exp(), seen.log_target.exp()).sum(-1)
    ranking = log_mixed if seen.noise is None else log_mixed + seen.noise
    return ranking.argmax(-1) == seen.token


@dataclass(frozen=True)
class GridWeights:
    """The point of a grid that would have been best so far (TABED's MT* and MTC*).

    Args:
        criterion: `"matches"`: most matches with the target, and of equal points the one with the
            smallest summed KL(p || q_w), as the public code does. `"kl"`: the smallest summed KL.
            `"tvd"`: the smallest summed total variation TV(p, q_w).
        steps: weights are multiples of ``1 / steps``.
        window: h, the number of latest positions that count; None for all.

    Raises:
        ConfigError: a value makes no sense.
    """

    criterion: str = "matches"
    steps: int = 10
    window: int | None = None

    needs_target_scores = True
    follows_path = False
    can_rest = False

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise ConfigError(f"unknown criterion {self.criterion!r}; known: {', '.join(CRITERIA)}")
        if type(self.steps) is not int or self.steps < 1:
            raise ConfigError(f"steps is a whole number from 1 on, not {self.steps!r}")
        check_window(self.window)

    def tally(self, names: Sequence[str]) -> GridTally:
        grid = weight_grid(len(names), self.steps)
        return GridTally(grid, self.criterion, self.window)


class DivergenceTally:
    """Summed divergences of the views."""

    def __init__(self, names: Sequence[str], rule: _DivergenceWeights) -> None:
        self.names = tuple(names)
        self.rule = rule
        self.sums = [WindowSums(1, rule.window) for _ in names]
        self._is_new = True

    @property
    def log_weights(self) -> list[float]:
        """Uniform before anything was observed."""
        inverse = [1 / max(float(sums.total), SMALLEST) for sums in self.sums]
        if self._is_new or max(inverse) == 0:  # all divergences are infinite
            return log_shares([1.0] * len(self.names))
        if self.rule.form == "softmax":
            return normalized([value / self.rule.temperature for value in inverse])
        return log_shares(inverse)

    def observe(self, seen: Seen) -> None:
        """A view without scores there loses nothing."""
        assert seen.log_probs is not None
        assert seen.log_target is not None
        self._is_new = False
        divergences = self.rule.divergence(seen.log_target, seen.log_probs)
        for sums, value in zip(self.sums, divergences.double().cpu(), strict=True):
            if not bool(value.isnan()):
                sums.add(value[None])


@dataclass(frozen=True)
class _DivergenceWeights:
    form: str = "softmax"
    temperature: float = 1.0
    window: int | None = None

    needs_target_scores = True
    follows_path = False
    can_rest = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ConfigError(f"unknown form {self.form!r}; known: {', '.join(FORMS)}")
        if not is_number(self.temperature) or not self.temperature > 0:
            raise ConfigError(f"temperature is a number above 0, not {self.temperature!r}")
        check_window(self.window)

    def divergence(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Of the target ``[V]`` and each view ``[m, V]``: ``[m]``."""
        raise NotImplementedError

    def tally(self, names: Sequence[str]) -> DivergenceTally:
        return DivergenceTally(names, self)


@dataclass(frozen=True)
class KullbackLeiblerWeights(_DivergenceWeights):
    """Weights by the summed e_v = KL(p || q_v) (TABED's MTCP*).

    Args:
        form: `"softmax"` for softmax(1 / (τ e_v)), as the paper, or `"inverse"` for weights in
            proportion to 1 / e_v, as its public code.
        temperature: τ.
        window: h, the number of latest positions that count; None for all.

    Raises:
        ConfigError: a value makes no sense.
    """

    def divergence(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return kl_divergence(log_p, log_q)


@dataclass(frozen=True)
class TotalVariationWeights(_DivergenceWeights):
    """Weights by the summed e_v = TV(p, q_v); the options are those of `KullbackLeiblerWeights`.

    Raises:
        ConfigError: a value makes no sense.
    """

    def divergence(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return total_variation(log_p, log_q)


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
    """All lists of `parts` numbers from 0 on that sum to `total`, the largest first part first."""
    if parts == 1:
        return [[total]]
    return [
        [first, *rest]
        for first in range(total, -1, -1)
        for rest in _compositions(parts - 1, total - first)
    ]
