"""Seconds of a model's forward as a function of its width and of the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class CostCurve:
    """Measured seconds of forwards over several tokens.

    A width is the number of new tokens of a forward, all rows together: the matrix products of a
    batch of four rows with two new tokens each are as wide as those of one row with eight. Kernels
    change with the width, so the curve often is a staircase. Between two measured widths the cost
    is taken to be that of the larger one.

    Args:
        widths: measured widths in rising order, the first of them 1.
        seconds: of a forward of each width after `context` cached tokens.
        context: cached tokens of the measured row.
        seconds_per_cached: further seconds for each cached token of each row.
        seconds_per_pair: further seconds for each pair of a new token and a cached token of its
            row, which is the part of attention that grows with both.

    Raises:
        ValueError: the widths do not rise from 1, or a time is no positive number.

    Example:

        >>> curve = CostCurve((1, 3, 6), (0.44, 0.51, 0.97))
        >>> curve.cost(1), curve.cost(2), curve.cost(4)
        (0.44, 0.51, 0.97)
        >>> curve.largest
        6
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    context: int = 0
    seconds_per_cached: float = 0.0
    seconds_per_pair: float = 0.0

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.widths, self.widths[1:], strict=False))
        if not rising or self.widths[:1] != (1,) or len(self.widths) != len(self.seconds):
            raise ValueError(f"widths must rise from 1, one for each time, not {self.widths}")
        slopes = (self.seconds_per_cached, self.seconds_per_pair)
        if not all(map(isfinite, (*self.seconds, *slopes))):
            raise ValueError("seconds must be finite")
        if min(self.seconds) <= 0 or min(slopes) < 0:
            raise ValueError("seconds must be positive")

    @property
    def largest(self) -> int:
        """The largest measured width."""
        return self.widths[-1]

    def cost(self, width: int, rows: int = 1, context: float | None = None) -> float:
        """Seconds of a forward.

        Args:
            width: new tokens, all rows together. Beyond the largest measured width the cost grows
                in proportion.
            rows: number of rows.
            context: cached tokens of each row; None for those of the measurement.
        """
        index = bisect_left(self.widths, width)
        if index < len(self.widths):
            seconds = self.seconds[index]
        else:
            seconds = self.seconds[-1] * width / self.largest
        if context is None:
            return seconds
        further = context - self.context
        slope = self.seconds_per_cached * rows + self.seconds_per_pair * width
        return max(seconds + slope * further, 0.1 * seconds)

    def steps(self, factor: float = 1.1) -> list[int]:
        """Widths after which the next measured width costs `factor` times as much or more."""
        pairs = zip(self.widths, self.seconds, self.seconds[1:], strict=False)
        return [width for width, seconds, next_seconds in pairs if next_seconds >= factor * seconds]

    def to_dict(self) -> dict[str, Any]:
        """The curve as JSON values."""
        return {
            "widths": list(self.widths),
            "seconds": list(self.seconds),
            "context": self.context,
            "seconds_per_cached": self.seconds_per_cached,
            "seconds_per_pair": self.seconds_per_pair,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostCurve:
        """The inverse of `to_dict`.

        Raises:
            ValueError, KeyError, TypeError: the values are no curve.
        """
        return cls(
            tuple(int(width) for width in values["widths"]),
            tuple(float(seconds) for seconds in values["seconds"]),
            int(values["context"]),
            float(values["seconds_per_cached"]),
            float(values["seconds_per_pair"]),
        )
