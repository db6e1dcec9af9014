"""Bayes' rule over views: a view is believed as far as it predicted what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan, log
from operator import index
from typing import TYPE_CHECKING, Any

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.weights.logs import log_shares, log_sum, normalized

if TYPE_CHECKING:
    from draftlens.methods.tabed.weights.base import Seen

REMEMBERED = 16
"""Answers over which the prior of later answers is averaged."""

SMALLEST = 1e-6
"""Smallest share of a view in a prior."""

EXPLORED_FIRST = 3
EXPLORED_EVERY = 8
"""All views are asked in the first answers of a memory, and then in one of so many."""

DOUBT = 0.05
"""Share of the prior that is spread evenly: earlier answers may have been of another kind."""


class BayesTally:
    """The posterior of the views.

    Args:
        names: of the views.
        rule: the options.
        prior: weights, which sum to 1.
        answers: answers that the prior comes from.
    """

    def __init__(
        self, names: Sequence[str], rule: BayesWeights, prior: Sequence[float], answers: int
    ) -> None:
        self.names = tuple(names)
        self.rule = rule
        self.prior = list(prior)
        self.answers = answers
        even = 1 / len(prior)
        self.log_weights = log_shares([(1 - DOUBT) * share + DOUBT * even for share in prior])
        self._sums = [0.0] * len(prior)
        self._count = 0

    @property
    def explores(self) -> bool:
        """See `Tally.explores`: in the first answers and in every eighth."""
        return self.answers < EXPLORED_FIRST or self.answers % EXPLORED_EVERY == 0

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

    def observe_late(self, view: int, advantage: float) -> None:
        """See `Tally.observe_late`."""
        log_weights = list(self.log_weights)
        log_weights[view] += self.rule.rate * advantage
        self._move(normalized(log_weights))

    def _move(self, log_weights: list[float]) -> None:
        shared = self.rule.forget / len(self.names)
        weights = [(1 - self.rule.forget) * exp(weight) + shared for weight in log_weights]
        self.log_weights = log_shares(weights) if shared else log_weights
        self._sums = [total + weight for total, weight in zip(self._sums, weights, strict=True)]
        self._count += 1

    def state(self) -> dict[str, Any]:
        """See `Tally.state`: the mean of this answer's weights, averaged with the prior."""
        shares = self.prior
        answers = self.answers
        if self._count:
            pairs = zip(self.prior, self._sums, strict=True)
            answers += 1
            weight = min(answers, REMEMBERED)
            shares = [before + (total / self._count - before) / weight for before, total in pairs]
        return {
            "answers": answers,
            "weights": dict(zip(self.names, shares, strict=True)),
        }


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
    can_be_late = True

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

    def tally(self, names: Sequence[str], state: Mapping[str, Any] | None = None) -> BayesTally:
        """See `Weighting.tally`. A view that the state lacks begins with an even share."""
        even = 1 / len(names)
        known = state["weights"] if state else {}
        shares = [max(known.get(name, even), SMALLEST) for name in names]
        answers = index(state["answers"]) if state else 0
        return BayesTally(names, self, [share / sum(shares) for share in shares], answers)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
