"""Bayes' rule over fixed mixtures of views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan, log
from typing import TYPE_CHECKING

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.mixture import weight_grid
from draftlens.methods.tabed.weights.logs import log_shares, normalized

if TYPE_CHECKING:
    from draftlens.methods.tabed.weights.base import Seen


class BayesGridTally:
    """The posterior of the points of a grid.

    Args:
        names: of the views.
        steps: of the grid.
        floor: smallest likelihood of a view.
    """

    def __init__(self, names: Sequence[str], steps: int, floor: float) -> None:
        self.points: list[list[float]] = weight_grid(len(names), steps).tolist()
        self.floor = floor
        self.log_posterior = [-log(len(self.points))] * len(self.points)

    @property
    def log_weights(self) -> list[float]:
        """See `Tally.log_weights`: the posterior mean of the points. A mixture of mixtures of views
        is a mixture of views."""
        shares = [exp(value) for value in self.log_posterior]
        columns = zip(*self.points, strict=True)
        return log_shares(
            [
                sum(share * weight for share, weight in zip(shares, column, strict=True))
                for column in columns
            ]
        )

    def observe(self, seen: Seen) -> None:
        """See `Tally.observe`. A view that was not asked is taken to say what the others say."""
        values = [max(exp(value), self.floor) for value in seen.log_likelihoods]  # NaN stays
        asked = [value for value in values if not isnan(value)]
        if not asked:
            return
        mean = sum(asked) / len(asked)
        filled = [mean if isnan(value) else value for value in values]
        moved = []
        for before, point in zip(self.log_posterior, self.points, strict=True):
            likelihood = sum(w * value for w, value in zip(point, filled, strict=True))
            moved.append(before + log(likelihood))
        self.log_posterior = normalized(moved)

    def observe_late(self, view: int, advantage: float) -> None:
        """The rule needs the likelihoods of all views at once, so nothing is learned."""


@dataclass(frozen=True)
class BayesGridWeights:
    """The posterior mean over fixed mixtures of views, by how likely each made the answer so far.

    The log loss of the guesses is within ln(number of points) of the best fixed mixture's
    (``docs/tabed.md``): 2.4 nats for two views and ten steps. Unlike `grid` it needs no
    distribution of the target.

    Args:
        steps: weights are multiples of ``1 / steps``.
        floor: a likelihood counts as no smaller than this.

    Raises:
        ConfigError: a value makes no sense.
    """

    steps: int = 10
    floor: float = 1e-4

    needs_target_scores = False
    follows_path = False
    can_rest = False

    def __post_init__(self) -> None:
        if type(self.steps) is not int or self.steps < 1:
            raise ConfigError(f"steps is a whole number from 1 on, not {self.steps!r}")
        is_number = isinstance(self.floor, (int, float)) and not isinstance(self.floor, bool)
        if not is_number or not 0 < self.floor < 1:
            raise ConfigError(f"floor is a probability above 0 and below 1, not {self.floor!r}")

    def tally(self, names: Sequence[str]) -> BayesGridTally:
        """See `Weighting.tally`."""
        return BayesGridTally(names, self.steps, self.floor)
