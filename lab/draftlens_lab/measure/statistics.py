"""Shares with confidence intervals, medians with quartiles, and the bootstrap over clips."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054
"""Standard deviations to either side that hold 95% of a normal distribution."""

RESAMPLES = 2000


@dataclass(frozen=True)
class Share:
    """A number of successes out of a number of trials.

    Args:
        total: number of trials; may be 0.
    """

    right: int
    total: int

    @classmethod
    def of(cls, truths: Iterable[bool]) -> Share:
        """The share of true values."""
        values = list(truths)
        return cls(sum(values), len(values))

    @property
    def value(self) -> float | None:
        """The share, 0 to 1; None without trials."""
        return self.right / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of Wilson (1927), which stays inside 0 to 1 and holds for small counts;
        None without trials."""
        if not self.total:
            return None
        share = self.right / self.total
        spread = Z * Z / self.total
        center = (share + spread / 2) / (1 + spread)
        variance = share * (1 - share) / self.total + spread / (4 * self.total)
        half = Z * sqrt(variance) / (1 + spread)
        # Rounding errors may place an end on the wrong side of the share.
        low = min(share, center - half)
        high = max(share, center + half)
        return max(0.0, low), min(1.0, high)

    def to_json(self) -> dict[str, Any]:
        """`right`, `total`, `share` and the ends of its interval, `low` and `high`."""
        low, high = self.interval or (None, None)
        return {
            "right": self.right,
            "total": self.total,
            "share": self.value,
            "low": low,
            "high": high,
        }


def quartiles(values: Sequence[float]) -> dict[str, float] | None:
    """`median`, `q1` and `q3` of the values, without extrapolation beyond them; None without
    values."""
    if not values:
        return None
    if len(values) == 1:
        q1 = median = q3 = values[0]
    else:
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def format_quartiles(value: Mapping[str, float] | None) -> str:
    """A median with its quartiles, such as ``1.50 (1.25 to 1.75)``; empty for None."""
    if value is None:
        return ""
    return f"{value['median']:.2f} ({value['q1']:.2f} to {value['q3']:.2f})"


def resamples(clips: int, seed: int) -> NDArray[np.int64]:
    """Clips drawn with replacement for the bootstrap.

    Returns:
        Indices of clips, int64 ``[RESAMPLES, clips]``.
    """
    return np.random.default_rng([seed, 8]).integers(clips, size=(RESAMPLES, clips))


def resampled_ratios(
    numerators: Sequence[int], denominators: Sequence[int], indices: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The ratio of two sums over clips, for each resample.

    Args:
        numerators, denominators: a count per clip.

    Returns:
        Ratios, float64 ``[RESAMPLES]``; a denominator of 0 counts as 1.
    """
    above = np.asarray(numerators, dtype=np.float64)[indices].sum(1)
    below = np.asarray(denominators, dtype=np.float64)[indices].sum(1)
    return np.asarray(above / np.maximum(below, 1), dtype=np.float64)


def central_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The 2.5% and the 97.5% quantile of resampled values: a 95% bootstrap interval."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
