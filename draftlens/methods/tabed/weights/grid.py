"""The weights of a grid that were best so far (TABED, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.mixture import kl_divergence, log_mixture, weight_grid
from draftlens.methods.tabed.weights.logs import log_shares
from draftlens.methods.tabed.weights.window import WindowSums, check_window

if TYPE_CHECKING:
    from draftlens.methods.tabed.weights.base import Seen

CRITERIA = ("matches", "kl")


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
        if not bool(cost.isfinite().any()):  # each point lacks a token that the target may say
            cost = torch.where(candidates, 0.0, torch.inf)
        return log_shares(self.grid[int(cost.argmin())].tolist())

    def observe(self, seen: Seen) -> None:
        """See `Tally.observe`."""
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
        """See `Weighting.tally`."""
        grid = weight_grid(len(names), self.steps)
        return GridTally(grid, self.criterion == "matches", self.window)
