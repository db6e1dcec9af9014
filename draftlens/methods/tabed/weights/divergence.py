"""Weights by how far each view's distributions were from the target's (TABED, appendix B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.mixture import kl_divergence, total_variation
from draftlens.methods.tabed.weights.logs import log_shares, normalized
from draftlens.methods.tabed.weights.window import WindowSums, check_window

if TYPE_CHECKING:
    from draftlens.methods.tabed.weights.base import Seen

FORMS = ("softmax", "inverse")

SMALLEST = 1e-6
"""A summed divergence counts as no smaller than this, so that its inverse is finite."""


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
        """See `Tally.observe`. A view that was not asked loses nothing."""
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
        is_number = isinstance(self.temperature, (int, float))
        if not is_number or isinstance(self.temperature, bool) or not self.temperature > 0:
            raise ConfigError(f"temperature is a number above 0, not {self.temperature!r}")
        check_window(self.window)

    def divergence(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Of the target ``[V]`` and each view ``[m, V]``: ``[m]``."""
        raise NotImplementedError

    def tally(self, names: Sequence[str]) -> DivergenceTally:
        """See `Weighting.tally`."""
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
