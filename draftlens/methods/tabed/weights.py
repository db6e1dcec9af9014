"""How the views of a prompt are weighed, and the rules that need only the target's tokens.

Symbols as in TABED (Algorithm 1): p the target's distribution, q_v the draft's in view v, w the
weights. m is the number of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import exp, inf, isfinite, isnan, log
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry, make

WEIGHTS = Registry(
    "weighting",
    {
        "uniform": "draftlens.methods.tabed.weights:UniformWeights",
        "fixed": "draftlens.methods.tabed.weights:FixedWeights",
        "bayes": "draftlens.methods.tabed.weights:BayesWeights",
    },
    group="draftlens.weights",
    lab=("grid", "kld", "tvd"),
)


@dataclass(frozen=True)
class Seen:
    """One position of an answer, after the target has chosen its token.

    The views that a tally weighs are m. A view that scored nothing at this position has NaN.

    Args:
        token: the target's.
        log_likelihoods: log q_v(token) of each view.
        log_probs: log q_v, ``[m, V]``; None unless the rule needs the target's scores.
        log_target: log p, ``[V]``; None unless the rule needs the target's scores.
        noise: what the draft adds to log probabilities to choose a token, ``[V]``; None where it
            takes the likeliest.
        rejects: whether draft tokens are accepted by rejection sampling.
    """

    token: int
    log_likelihoods: Sequence[float]
    log_probs: Tensor | None = None
    log_target: Tensor | None = None
    noise: Tensor | None = None
    rejects: bool = False


class Tally(Protocol):
    """The weights of the views for one answer."""

    @property
    def log_weights(self) -> Sequence[float]:
        """Log weights of the m views, normalized; minus infinity for none."""
        ...

    def observe(self, seen: Seen) -> None:
        """Update the weights by one position. Positions come in order."""
        ...


class Weighting(Protocol):
    """A rule that weighs views: a frozen dataclass whose fields are its options."""

    needs_target_scores: bool
    """Whether it reads the target's distributions."""

    can_rest: bool
    """Whether a view with a negligible weight may be dropped."""

    @property
    def follows_path(self) -> bool:
        """Whether weights are updated along a path of draft tokens: w_v is multiplied by
        q_v(token)."""
        ...

    def tally(self, names: Sequence[str]) -> Tally:
        """A new tally of views with these names, all different."""
        ...


def make_weighting(choice: Any) -> Weighting:
    """A weighting from a name, a mapping of its name and options, numbers, or itself.

    Raises:
        ConfigError: the name or an option is unknown, or a value makes no sense.

    Example:

        >>> make_weighting([0.7, 0.3])
        FixedWeights(values=(0.7, 0.3))
    """
    if isinstance(choice, (list, tuple)):
        return FixedWeights(tuple(choice))
    weighting: Weighting = make(WEIGHTS, choice, "tally")
    return weighting


class FixedTally:
    """Weights that do not change: at least 0, not all 0."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.log_weights = log_shares(weights)

    def observe(self, seen: object) -> None:
        """Nothing changes."""


@dataclass(frozen=True)
class UniformWeights:
    """Every view has the same weight (TABED's MT, and the M, T, C and P together)."""

    needs_target_scores = False
    follows_path = False
    can_rest = False

    def tally(self, names: Sequence[str]) -> FixedTally:
        return FixedTally([1.0] * len(names))


@dataclass(frozen=True)
class FixedWeights:
    """Weights that the user gives, one for each view.

    In a row that lacks a view, because it would read the same there as in another one, the other
    weights keep their proportions.

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
        """A tally with these weights.

        Raises:
            ConfigError: there is not one weight for each view.
        """
        if len(self.values) != len(names):
            raise ConfigError(f"{len(self.values)} weights are given for {len(names)} views")
        return FixedTally(self.values)


class BayesTally:
    """The posterior of the views."""

    def __init__(self, names: Sequence[str], rule: BayesWeights) -> None:
        self.names = tuple(names)
        self.rule = rule
        self.log_weights = log_shares([1.0] * len(names))

    def observe(self, seen: Seen) -> None:
        """A view without scores there counts as the mixture."""
        floor = self.rule.log_floor
        likelihoods = [max(value, floor) for value in seen.log_likelihoods]  # NaN stays
        pairs = list(zip(self.log_weights, likelihoods, strict=True))
        scored = [(weight, value) for weight, value in pairs if not isnan(value)]
        if not scored:
            return
        mixture = log_sum([weight + value for weight, value in scored])
        mixture -= log_sum([weight for weight, _ in scored])
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
    """w_v in proportion to the product of q_v(token) over the answer so far, draft tokens of the
    path included (a rejected one ends its path, so later ones do not count).

    One number a view is kept; no distribution of the target is needed. If every token is observed,
    the log loss of the mixture is within ln m of the best view's, and with `forget` within
    ``(k + 1) ln m + k ln(N / k) + k`` or so of the best sequence of views with k changes over N
    tokens (fixed share; Herbster and Warmuth 1998).

    Args:
        rate: exponent of the likelihoods. Below 1 the weights move less and more is mixed; they are
            then constant along a path of draft tokens, and the bounds do not hold.
        forget: share of the weights that is spread evenly after every token.
        floor: a likelihood counts as no smaller than this, so that a view can recover after
            top-k or top-p left it no chance.

    Raises:
        ConfigError: a value makes no sense.
    """

    rate: float = 1.0
    forget: float = 0.02
    floor: float = 1e-4

    needs_target_scores = False
    can_rest = True

    def __post_init__(self) -> None:
        if not is_number(self.rate) or not 0 < self.rate <= 1:
            raise ConfigError(f"rate is a number above 0 and at most 1, not {self.rate!r}")
        if not is_number(self.forget) or not 0 <= self.forget < 1:
            raise ConfigError(f"forget is a share from 0 to below 1, not {self.forget!r}")
        if not is_number(self.floor) or not 0 < self.floor < 1:
            raise ConfigError(f"floor is a probability above 0 and below 1, not {self.floor!r}")

    @property
    def follows_path(self) -> bool:
        return self.rate == 1

    @property
    def log_floor(self) -> float:
        return log(self.floor)

    def tally(self, names: Sequence[str]) -> BayesTally:
        return BayesTally(names, self)


def log_mixture(log_probs: Tensor, log_weights: Tensor) -> Tensor:
    """The logarithm of sum over views of w_v q_v.

    Args:
        log_probs: log q_v, float ``[B, m, M, V]``.
        log_weights: log w, float ``[B, m, M]``; minus infinity for views that do not count.

    Returns:
        ``[B, M, V]``. Where one view has all the weight these are its values, unchanged.
    """
    weighted = log_probs + log_weights[..., None].to(log_probs)
    return reduce(torch.logaddexp, weighted.unbind(1))  # a kernel for each view, not nine


def is_number(value: Any) -> bool:
    """Booleans are not numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_weight(value: Any) -> bool:
    return is_number(value) and isfinite(value) and value >= 0


def log_sum(values: Sequence[float]) -> float:
    """The logarithm of the sum of exponentials; minus infinity of none."""
    largest = max(values, default=-inf)
    if largest == -inf:
        return -inf
    return largest + log(sum(exp(value - largest) for value in values))


def normalized(values: Sequence[float]) -> list[float]:
    """Log weights with weights that sum to 1; even ones if all are minus infinity."""
    total = log_sum(values)
    if total == -inf:
        return [-log(len(values))] * len(values)
    return [value - total for value in values]


def log_shares(weights: Sequence[float]) -> list[float]:
    """Logarithms of the shares of weights from 0 on, which are not all 0."""
    total = sum(weights)
    return [log(weight / total) if weight > 0 else -inf for weight in weights]
