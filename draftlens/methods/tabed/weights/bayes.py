"""Bayes' rule over views: a view is believed as far as it predicted what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan, log
from typing import TYPE_CHECKING, Any

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.weights.logs import log_shares, log_sum, normalized

if TYPE_CHECKING:
    from draftlens.methods.tabed.weights.base import Seen


class BayesTally:
    """The posterior of the views.

    Args:
        names: of the views.
        rule: the options.
    """

    def __init__(self, names: Sequence[str], rule: BayesWeights) -> None:
        self.names = tuple(names)
        self.rule = rule
        self.log_weights = log_shares([1.0] * len(names))

    def observe(self, seen: Seen) -> None:
        """See `Tally.observe`. A view that was not asked is taken to say what the mixture says."""
        floor = self.rule.log_floor
        likelihoods = [max(value, floor) for value in seen.log_likelihoods]  # NaN stays
        pairs = list(zip(self.log_weights, likelihoods, strict=True))
        asked = [(weight, value) for weight, value in pairs if not isnan(value)]
        if not asked:
            return
        mixture = log_sum([weight + value for weight, value in asked])
        mixture -= log_sum([weight for weight, _ in asked])
        rate = self.rule.rate
        moved = [weight + rate * (mixture if isnan(value) else value) for weight, value in pairs]
        self._move(normalized(moved))

    def _move(self, log_weights: list[float]) -> None:
        forget = self.rule.forget
        shared = forget / len(self.names)
        if shared:
            log_weights = log_shares([(1 - forget) * exp(each) + shared for each in log_weights])
        self.log_weights = log_weights


@dataclass(frozen=True)
class BayesWeights:
    """w_v in proportion to the product of q_v(token) over the answer so far, the path of guesses
    included.

    A wrong guess ends its path, so whatever a later guess on the same path is made from is right
    if it is used at all. One number a view is kept; no distribution of the target is needed. If
    every token is observed, the log loss of the mixture is within ln m of the best view's, and with
    `forget` within ``(k + 1) ln m + k ln(N / k) + k`` or so of the best sequence of views with k
    changes over N tokens (fixed share; Herbster and Warmuth 1998).

    Args:
        rate: exponent of the likelihoods. Below 1 the weights move less and more is mixed; they are
            then constant along a path of guesses, and the bounds do not hold.
        forget: share of the weights that is spread evenly after every token.
        floor: a likelihood counts as no smaller than this, so that a view can be believed again
            after top-k or top-p left it no chance.

    Raises:
        ConfigError: a value makes no sense.
    """

    rate: float = 1.0
    forget: float = 0.02
    floor: float = 1e-4

    needs_target_scores = False
    can_rest = True

    def __post_init__(self) -> None:
        if not _is_number(self.rate) or not 0 < self.rate <= 1:
            raise ConfigError(f"rate is a number above 0 and at most 1, not {self.rate!r}")
        if not _is_number(self.forget) or not 0 <= self.forget < 1:
            raise ConfigError(f"forget is a share from 0 to below 1, not {self.forget!r}")
        if not _is_number(self.floor) or not 0 < self.floor < 1:
            raise ConfigError(f"floor is a probability above 0 and below 1, not {self.floor!r}")

    @property
    def follows_path(self) -> bool:
        """See `Weighting.follows_path`."""
        return self.rate == 1

    @property
    def log_floor(self) -> float:
        """The logarithm of the floor."""
        return log(self.floor)

    def tally(self, names: Sequence[str]) -> BayesTally:
        """See `Weighting.tally`."""
        return BayesTally(names, self)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
