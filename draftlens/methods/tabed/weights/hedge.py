"""Exponential weights on the total variation: a bound on the accepted guesses of a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan, log, sqrt
from typing import TYPE_CHECKING

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.mixture import total_variation
from draftlens.methods.tabed.weights.logs import normalized

if TYPE_CHECKING:
    from draftlens.methods.tabed.weights.base import Seen


class HedgeTally:
    """Summed total variation of the views.

    Args:
        names: of the views.
        rate: η; None for ``sqrt(4 ln m / (block * N))`` behind N positions.
        block: positions whose weights may be chosen before the first of them is seen.
    """

    def __init__(self, names: Sequence[str], rate: float | None, block: int) -> None:
        self.names = tuple(names)
        self.rate = rate
        self.block = block
        self.losses = [0.0] * len(names)
        self.count = 0

    @property
    def log_weights(self) -> list[float]:
        """See `Tally.log_weights`: w_v in proportion to exp(-η sum of TV(p, q_v))."""
        rate = self.rate
        if rate is None:
            rate = sqrt(4 * log(len(self.names)) / (self.block * max(self.count, 1)))
        return normalized([-rate * loss for loss in self.losses])

    def observe(self, seen: Seen) -> None:
        """See `Tally.observe`. A view that was not asked is charged what the mixture lost."""
        assert seen.log_probs is not None
        assert seen.log_target is not None
        losses = total_variation(seen.log_target, seen.log_probs).tolist()
        shares = zip(self.log_weights, losses, strict=True)
        asked = [(exp(weight), loss) for weight, loss in shares if not isnan(loss)]
        total = sum(weight for weight, _ in asked)
        mean = sum(weight * loss for weight, loss in asked) / total if total else 0.0
        for view, loss in enumerate(losses):
            self.losses[view] += mean if isnan(loss) else loss
        self.count += 1

    def observe_late(self, view: int, advantage: float) -> None:
        """The rule needs whole distributions, so nothing is learned."""


@dataclass(frozen=True)
class HedgeWeights:
    """Exponential weights on the total variation (Hedge; Freund and Schapire 1997).

    Under rejection sampling a guess is accepted with probability 1 - TV(p, q_w), and TV is convex
    in w. So the expected number of accepted guesses over N positions is at most
    ``sqrt(d N ln m) + d sqrt(d ln m) / 2`` below that of the best view, where d is `block`
    (``docs/tabed.md``). N need not be known beforehand: with the rates η of the blocks, which
    fall, the regret is at most ``ln m / η + sum of η d^2 / 8`` (Hoeffding's lemma; de Rooij et
    al. 2014, lemma 2).

    Args:
        rate: η of the weights exp(-η sum of TV); None for the rate of the bound.
        block: γ + 1, the most positions between two changes of the weights.

    Raises:
        ConfigError: a value makes no sense.
    """

    rate: float | None = None
    block: int = 6

    needs_target_scores = True
    follows_path = False
    can_rest = False

    def __post_init__(self) -> None:
        is_number = isinstance(self.rate, (int, float)) and not isinstance(self.rate, bool)
        if self.rate is not None and not (is_number and self.rate > 0):
            raise ConfigError(f"rate is a number above 0, or None, not {self.rate!r}")
        if type(self.block) is not int or self.block < 1:
            raise ConfigError(f"block is a number of positions from 1 on, not {self.block!r}")

    def tally(self, names: Sequence[str]) -> HedgeTally:
        """See `Weighting.tally`."""
        return HedgeTally(names, self.rate, self.block)
