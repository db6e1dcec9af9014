"""What forwards cost now: a measured curve, corrected by the rounds of answers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable

from draftlens.drafting.adaptive.cost_curve import CostCurve

WINDOW = 8
"""Latest timings of each width that count, because the speed of a machine changes."""

SURPRISE = 1.25
"""Factor between a timing and its expectation that may mean that the costs have changed."""

ENOUGH = 3
"""Timings of a width that cannot all be accidents."""

RECENT = 4
"""Latest timings in which two surprises contradict the curve."""

FIRST_LIMIT = 3
"""Without a measured curve, the largest width to try first."""


class LiveCosts:
    """The cost curve of one model during answers.

    A timing is compared with the prediction of the curve. The ratio corrects this width and, as far
    as they have no timings of their own, the widths that are closest to it. The correction of a
    width is the lower median of its latest ratios and of the one that its neighbours suggest: a
    single slow timing is often an accident and changes nothing, a second one does. After two
    surprises within `RECENT` timings of whatever widths, the curve is not trusted any more, and a
    single timing suffices.

    Args:
        curve: of the model; None if it was never measured. Then a forward of up to twice the
            largest width so far is taken to cost as much as that one.
        scale: seconds that a forward is taken to last before any timing, if there is no curve.
        other: the other model of the pair, whose ratio holds until this one has timings.

    Attributes:
        curve: as given, or a flat one.
        trusted: whether a curve was given and timings have not contradicted it.
    """

    def __init__(
        self, curve: CostCurve | None, scale: float = 1.0, other: LiveCosts | None = None
    ) -> None:
        self.curve = curve or CostCurve((1, 1 << 20), (scale, scale))
        self.trusted = curve is not None
        self.other = other
        self._measured = curve is not None
        self._timings: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._ratios: dict[int, float] = {}
        self._widths: list[int] = []
        self._surprises: deque[bool] = deque(maxlen=RECENT)

    @property
    def is_measured(self) -> bool:
        """Whether there is a measured curve."""
        return self._measured

    def adopt(self, curve: CostCurve) -> None:
        """Start anew with a curve that was measured since."""
        self.curve = curve
        self.trusted = self._measured = True
        self._timings.clear()
        self._ratios.clear()
        self._widths = []
        self._surprises.clear()

    @property
    def largest(self) -> int:
        """The largest width that may be tried: no cost beyond it is known."""
        seen = max(self._ratios, default=0)
        if self._measured:
            return max(self.curve.largest, seen)
        return max(FIRST_LIMIT, 2 * seen)

    def has_timing(self, width: int) -> bool:
        """Whether a forward of this width has been timed during an answer."""
        return width in self._ratios

    def cost(self, width: int, rows: int = 1, context: float | None = None) -> float:
        """Seconds of a forward; arguments as for `CostCurve.cost`.

        A width with few timings, which may be accidents, costs no more than a wider one.
        """
        seconds = self.curve.cost(width, rows, context) * self.ratio(width)
        if 0 < len(self._timings.get(width, ())) < ENOUGH:
            for wider in self._widths[bisect_right(self._widths, width) :]:
                wide = self.curve.cost(wider, rows, context) * self._ratios[wider]
                seconds = min(seconds, wide)
        return seconds

    def record(self, width: int, predicted: float, seconds: float) -> None:
        """Record a timing.

        Args:
            width: of the forward; of the widest one if several were timed together.
            predicted: their cost by the curve alone.
            seconds: what they took.
        """
        ratio = seconds / predicted
        self._surprises.append(not 1 / SURPRISE < ratio / self.ratio(width) < SURPRISE)
        self._timings[width].append(ratio)
        self._ratios[width] = self._confirmed(width)
        self._widths = sorted(self._ratios)
        if self.trusted and sum(self._surprises) > 1:
            self.trusted = False
            self._ratios = {w: _lower_median(values) for w, values in self._timings.items()}

    def ratio(self, width: int) -> float:
        """By how much forwards of a width take longer than the curve says."""
        ratio = self._ratios.get(width)
        return self._neighbours_ratio(width) if ratio is None else ratio

    @property
    def is_surprised(self) -> bool:
        """Whether the latest timing was far from what was expected."""
        return bool(self._surprises) and self._surprises[-1]

    def _confirmed(self, width: int) -> float:
        timings = self._timings[width]
        if self.trusted and len(timings) < WINDOW:
            return _lower_median([self._neighbours_ratio(width), *timings])
        return _lower_median(timings)

    def _neighbours_ratio(self, width: int) -> float:
        """What the timings of other widths suggest: that of the closest one, by the logarithm of
        the width."""
        widths = self._widths
        index = bisect_left(widths, width)
        after = index + 1 if width in self._ratios else index
        left = widths[index - 1] if index else None
        right = widths[after] if after < len(widths) else None
        if left is not None and (right is None or width * width <= left * right):
            return self._ratios[left]
        if right is not None:
            return self._ratios[right]
        if self.other is not None and not self._measured:
            return self.other.ratio(1)
        return 1.0


def _lower_median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
