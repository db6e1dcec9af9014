"""Counts as shares with intervals, and means with intervals over clips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """How many of how many.

    Args:
        right: of `total`.
        total: 0 where nothing was asked.
    """

    right: int
    total: int

    @classmethod
    def of(cls, truths: Iterable[bool]) -> Share:
        """The share of what is true."""
        listed = list(truths)
        return cls(sum(listed), len(listed))

    @property
    def value(self) -> float | None:
        """0 to 1; None where nothing was asked."""
        return self.right / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of Wilson (1927), which stays inside 0 to 1 and holds for small counts
        too."""
        if not self.total:
            return None
        share, spread = self.right / self.total, Z * Z / self.total
        middle = (share + spread / 2) / (1 + spread)
        half = Z * sqrt(share * (1 - share) / self.total + spread / (4 * self.total)) / (1 + spread)
        return max(0.0, min(share, middle - half)), min(
            1.0, max(share, middle + half)
        )  # rounding may leave the share

    def to_json(self) -> dict[str, Any]:
        """Right, total, share and the ends of its interval."""
        low, high = self.interval or (None, None)
        return {
            "right": self.right,
            "total": self.total,
            "share": self.value,
            "low": low,
            "high": high,
        }


def resamples(clips: int, seed: int) -> NDArray[np.int64]:
    """Clips drawn with replacement, int64 ``[RESAMPLES, clips]``: the same for the same seed."""
    return np.random.default_rng([seed, 8]).integers(clips, size=(RESAMPLES, clips))


def ratio(
    over: Sequence[int], under: Sequence[int], drawn: NDArray[np.int64]
) -> NDArray[np.float64]:
    """``sum(over) / sum(under)`` of each resample, float64 ``[RESAMPLES]``; `over` and `under` are
    per clip."""
    above, below = (np.asarray(counts, dtype=np.float64)[drawn].sum(1) for counts in (over, under))
    return np.asarray(above / np.maximum(below, 1), dtype=np.float64)


def middle(values: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the 95% of resampled values that lie in the middle."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
