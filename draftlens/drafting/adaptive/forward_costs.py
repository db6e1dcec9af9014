"""What forwards cost now: a measured curve, corrected by the rounds of answers."""

from __future__ import annotations

from collections import defaultdict, deque

from draftlens.drafting.adaptive.cost_curve import CostCurve

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
        wider = (timed for timed in self._timings if timed > width)
        return min(self._corrected(each, rows, context) for each in (width, *wider))

    def _corrected(self, width: int, rows: int, context: float | None) -> float:
        return self.curve.cost(width, rows, context) * self.ratio(width)

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
        if width not in self._ratios:
            closest = min(self._timings, key=lambda timed: max(timed / width, width / timed))
            ratios = list(self._timings[closest])
            if self.trusted:
                other_ratios = [t[-1] for timed, t in self._timings.items() if timed != closest]
                ratios.append(max(_lower_median(other_ratios or [1.0]), 1.0))
            self._ratios[width] = _lower_median(ratios)
        return self._ratios[width]


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
