"""Rules that weigh views by the target's distributions (TABED, section 5.1 and appendix B.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.mixture import (
    kl_divergence,
    log_mixture,
    total_variation,
    weight_grid,
)
from draftlens.methods.tabed.weights import Seen, is_number, log_shares, normalized

CRITERIA = ("matches", "kl")

FORMS = ("softmax", "inverse")

SMALLEST = 1e-6
"""A summed divergence counts as no smaller than this, so that its inverse is finite."""


def check_window(window: Any) -> None:
    """Refuse a window that is neither None nor a number of positions.

    Raises:
        ConfigError: it is neither.
    """
    if window is not None and (type(window) is not int or window < 1):
        raise ConfigError(f"window is a number of positions from 1 on, or None, not {window!r}")


class WindowSums:
    """Sums over the last `window` positions.

    Nothing else of a position is kept, in particular no distribution.

    Args:
        size: K, numbers a position.
        window: h; None for all positions.

    Attributes:
        is_empty: whether nothing was added yet.
    """

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
    """Matches and divergences of every point of the grid.

    Args:
        grid: the points, float64 ``[G, m]``.
        by_matches: whether matches decide, and divergences only between equal points.
        window: number of latest positions that count; None for all.
    """

    def __init__(self, grid: Tensor, by_matches: bool, window: int | None) -> None:
        self.grid = grid
        self.by_matches = by_matches
        self.sums = WindowSums(2 * len(grid), window)

    @property
    def log_weights(self) -> list[float]:
        """See `Tally.log_weights`: uniform before anything was seen."""
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
        divergence = kl_divergence(seen.log_target, log_mixed)
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
        return GridTally(grid, self.criterion == "matches", self.window)


class DivergenceTally:
    """Summed divergences of the views.

    Args:
        names: of the views.
        rule: the options.
    """

    def __init__(self, names: Sequence[str], rule: _DivergenceWeights) -> None:
        self.names = tuple(names)
        self.rule = rule
        self.sums = [WindowSums(1, rule.window) for _ in names]
        self._is_new = True

    @property
    def log_weights(self) -> list[float]:
        """See `Tally.log_weights`: uniform before anything was seen."""
        inverse = [1 / max(float(sums.total), SMALLEST) for sums in self.sums]
        if self._is_new or max(inverse) == 0:  # all divergences are infinite
            return log_shares([1.0] * len(self.names))
        if self.rule.form == "softmax":
            return normalized([value / self.rule.temperature for value in inverse])
        return log_shares(inverse)

    def observe(self, seen: Seen) -> None:
        """See `Tally.observe`. A view without scores there loses nothing."""
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
        """KL(p || q_v)."""
        return kl_divergence(log_p, log_q)


@dataclass(frozen=True)
class TotalVariationWeights(_DivergenceWeights):
    """Weights by the summed e_v = TV(p, q_v); the options are those of `KullbackLeiblerWeights`.

    Raises:
        ConfigError: a value makes no sense.
    """

    def divergence(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """TV(p, q_v)."""
        return total_variation(log_p, log_q)
