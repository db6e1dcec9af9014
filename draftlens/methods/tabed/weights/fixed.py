"""Weights that do not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.weights.logs import log_shares


class FixedTally:
    """Weights that do not change.

    Args:
        weights: at least 0, not all 0.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.log_weights = log_shares(weights)

    def observe(self, seen: object) -> None:
        """There is nothing to learn."""


@dataclass(frozen=True)
class UniformWeights:
    """Every view has the same weight (TABED's MT, and the M, T, C and P together)."""

    needs_target_scores = False
    follows_path = False
    can_rest = False

    def tally(self, names: Sequence[str]) -> FixedTally:
        """See `Weighting.tally`."""
        return FixedTally([1.0] * len(names))


@dataclass(frozen=True)
class FixedWeights:
    """Weights that the user gives, one for each view.

    A row that lacks a view, because it would read the same there as in another one, gives that
    view's weight to no one: the others keep their proportions.

    Args:
        values: at least 0 each, not all 0, in the order of the views.

    Raises:
        ConfigError: they are not.
    """

    values: tuple[float, ...]

    needs_target_scores = False
    follows_path = False
    can_rest = True

    def __post_init__(self) -> None:
        is_list = isinstance(self.values, (list, tuple))
        if not is_list or not all(map(_is_weight, self.values)) or not any(self.values):
            raise ConfigError(f"weights are numbers from 0 on, not all 0, not {self.values!r}")
        object.__setattr__(self, "values", tuple(self.values))

    def tally(self, names: Sequence[str]) -> FixedTally:
        """See `Weighting.tally`.

        Raises:
            ConfigError: there is not one weight for each view.
        """
        if len(self.values) != len(names):
            raise ConfigError(f"{len(self.values)} weights are given for {len(names)} views")
        return FixedTally(self.values)


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and isfinite(value) and value >= 0
