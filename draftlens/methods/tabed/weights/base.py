"""The seam of all rules that weigh views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from draftlens.core.options import make
from draftlens.core.registry import Registry
from draftlens.methods.tabed.weights.fixed import FixedWeights

WEIGHTS = Registry(
    "weighting",
    {
        "uniform": "draftlens.methods.tabed.weights.fixed:UniformWeights",
        "fixed": "draftlens.methods.tabed.weights.fixed:FixedWeights",
        "grid": "draftlens.methods.tabed.weights.grid:GridWeights",
        "kld": "draftlens.methods.tabed.weights.divergence:KullbackLeiblerWeights",
        "tvd": "draftlens.methods.tabed.weights.divergence:TotalVariationWeights",
        "bayes": "draftlens.methods.tabed.weights.bayes:BayesWeights",
    },
    group="draftlens.weights",
)


@dataclass(frozen=True)
class Seen:
    """One position of an answer, after the target has chosen its token.

    The views that a tally weighs are m. A view that was not asked at this position has NaN.

    Args:
        token: the target's.
        log_likelihoods: log q_v(token) of each view.
        log_probs: log q_v, ``[m, V]``; None unless the rule needs the target's scores.
        log_target: log p, ``[V]``; None unless the rule needs the target's scores.
        noise: what the draft adds to log probabilities to choose a guess, ``[V]``; None where it
            takes the likeliest.
        rejects: whether guesses are accepted by chance instead of by equality.
    """

    token: int
    log_likelihoods: Sequence[float]
    log_probs: Tensor | None = None
    log_target: Tensor | None = None
    noise: Tensor | None = None
    rejects: bool = False


class Tally(Protocol):
    """What one answer has shown about the views."""

    @property
    def log_weights(self) -> Sequence[float]:
        """Log weights of the m views, normalized; minus infinity for none."""
        ...

    def observe(self, seen: Seen) -> None:
        """Learn from one position. Positions come in order."""
        ...


class Weighting(Protocol):
    """A rule that weighs views: a frozen dataclass whose fields are its options."""

    needs_target_scores: bool
    """Whether it reads the target's distributions."""

    can_rest: bool
    """Whether a view with a negligible weight need not be asked."""

    @property
    def follows_path(self) -> bool:
        """Whether weights go on along a path of guesses: w_v is multiplied by q_v(guess)."""
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
