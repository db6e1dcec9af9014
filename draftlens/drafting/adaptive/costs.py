"""What a round is expected to bring and to cost."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from draftlens.core.tree import DraftTree


@dataclass(frozen=True)
class Expectation:
    """The result of a round, for each running row.

    Args:
        tokens: that are emitted, the one of the target included.
        seconds: of drafting and verifying.
    """

    tokens: float
    seconds: float

    def speed(self, trust: float = 1.0) -> float:
        """Tokens per second, if `trust` times as many draft tokens are accepted."""
        return (1 + trust * (self.tokens - 1)) / self.seconds


@dataclass(frozen=True)
class CopiedRun:
    """Copied tokens, the probability that each of them is accepted if what they follow is, and the
    index of the reference they come from, negative for the prompt and the answer."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    reference: int = -1


NOTHING_COPIED = CopiedRun((), ())


@dataclass(frozen=True)
class Proposal:
    """Draft tokens, and the expected result of their round; None if there are none, or if no costs
    are measured."""

    tree: DraftTree
    expected: Expectation | None


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
        return {**vars(self), "widths": list(self.widths), "seconds": list(self.seconds)}

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


WINDOW = 8
"""Latest timings of each width that count, because the speed of a machine changes."""
SURPRISE = 1.25
"""Factor by which a forward takes longer than expected that may contradict the curve."""
RECENT = 4
"""If two of the last four timings exceed the curve by SURPRISE, the curve is distrusted."""
FIRST_LIMIT = 3
"""Without a measured curve, the largest width to try first."""


class ForwardCosts:
    """The cost curve of one model during answers.

    A width costs what the curve says, times the lower median of the latest ratios of timings to
    the curve, at the closest width that has timings. With a measured curve, the latest ratio of the
    other widths (at least 1) counts as one more, so that a single slow forward, which is often an
    accident, changes nothing, until two of `RECENT` timings contradict the curve.

    Args:
        curve: of the model; None if it was never measured. Then a forward of up to twice the
            largest width so far is taken to cost as much as that one.
        scale: seconds that a forward is taken to last before any timing, if there is no curve.
        other: the other model of the pair, whose ratio holds until this one has timings.
    """

    def __init__(
        self, curve: CostCurve | None, scale: float = 1.0, other: ForwardCosts | None = None
    ) -> None:
        self.curve = curve or CostCurve((1, 1 << 20), (scale, scale))
        self.is_measured = curve is not None
        self.other = other
        self._timings: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._ratios: dict[int, float] = {}
        self._surprises: deque[bool] = deque(maxlen=RECENT)
        self.trusted = curve is not None

    def adopt(self, curve: CostCurve) -> None:
        """Start anew with a curve that was measured since."""
        self.curve = curve
        self.is_measured = self.trusted = True
        self._timings.clear()
        self._ratios.clear()
        self._surprises.clear()

    @property
    def largest(self) -> int:
        """The largest width that may be tried: no cost beyond it is known."""
        timed = max(self._timings, default=0)
        if self.is_measured:
            return max(self.curve.largest, timed)
        return max(FIRST_LIMIT, 2 * timed)

    def has_timing(self, width: int) -> bool:
        """Whether a forward of this width has been timed during an answer."""
        return width in self._timings

    def cost(self, width: int, rows: int = 1, context: float | None = None) -> float:
        """Seconds of a forward; arguments as for `CostCurve.cost`.

        No more than a wider forward that was timed: the timings of a width may be accidents.
        """
        return self.costs((width,), rows, context)[0]

    def costs(
        self, widths: Sequence[int], rows: int = 1, context: float | None = None
    ) -> list[float]:
        """`cost` of each of the widths, which rise."""

        def corrected(width: int) -> float:
            return self.curve.cost(width, rows, context) * self.ratio(width)

        timed = sorted(self._timings, reverse=True)
        least = inf
        costs = []
        for width in reversed(widths):
            while timed and timed[0] > width:
                least = min(least, corrected(timed.pop(0)))
            costs.append(min(least, corrected(width)))
        return costs[::-1]

    def record(self, width: int, predicted: float, seconds: float) -> None:
        """Record a timing.

        Args:
            width: of the forward; of the widest one if several were timed together.
            predicted: their cost by the curve alone.
            seconds: what they took.
        """
        self._surprises.append(seconds > SURPRISE * self.ratio(width) * predicted)
        self._timings[width].append(seconds / predicted)
        if sum(self._surprises) > 1:
            self.trusted = False
        self._ratios.clear()

    def ratio(self, width: int) -> float:
        """By how much forwards of a width take longer than the curve says."""
        if not self._timings:
            return 1.0 if self.other is None or self.is_measured else self.other.ratio(1)
        if width not in self._timings:
            width = min(self._timings, key=lambda timed: max(timed / width, width / timed))
        if width not in self._ratios:
            ratios = list(self._timings[width])
            if self.trusted:
                other_ratios = [t[-1] for timed, t in self._timings.items() if timed != width]
                ratios.append(max(_lower_median(other_ratios or [1.0]), 1.0))
            self._ratios[width] = _lower_median(ratios)
        return self._ratios[width]


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
