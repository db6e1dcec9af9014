"""Figures with 95% intervals, read from the result files.

Counts of clips and prompts are resampled (bootstrap). Times are ratios of runs side by side: the
geometric mean with Student's interval. Shares of answers have Wilson's interval, differences of
paired answers that of Bonett and Price (2012), which holds for small counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from draftlens_lab.measure.statistics import (
    Share,
    Z,
    central_interval,
    resampled_ratios,
    resamples,
)
from numpy.typing import NDArray

Rows = Sequence[Sequence[float]]
"""Counts by clip or prompt."""

STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5% quantile of Student's t by degrees of freedom, from 1 on."""


@dataclass(frozen=True)
class Figure:
    """What was seen.

    Args:
        value: the estimate.
        interval: its 95% interval; None if it was measured once.
        is_computed: whether there is no chance in it, so that both ends are the value.
        count: of the clips, prompts or repeats that it is computed from; 0 if it is not known.
    """

    value: float
    interval: tuple[float, float] | None = None
    is_computed: bool = False
    count: int = 0

    def text(self, form: str) -> str:
        shown = format(self.value, form)
        if self.is_computed:
            return f"{shown} (computed)"
        if self.interval is None:
            return f"{shown} (no interval)"
        low, high = self.interval
        return f"{shown} ({low:{form}} to {high:{form}})"

    def among(self, count: int) -> Figure:
        """The figure as one of several of which any may refute a claim: its interval is as wide as
        Bonferroni's correction demands, so that all of them together err in 5% of cases."""
        if self.interval is None or count < 2:
            return self
        low, high = self.interval
        factor = NormalDist().inv_cdf(1 - 0.025 / count) / Z
        wide = (self.value - factor * (self.value - low), self.value + factor * (high - self.value))
        return replace(self, interval=wide)

    def needed(self, bounds: Iterable[float]) -> int | None:
        """How many clips, prompts or repeats would take these bounds out of the interval if the
        estimate stayed; None without a spread, or if the estimate is on a bound."""
        if self.interval is None or not self.count:
            return None
        low, high = self.interval
        found = 0
        for bound in bounds:
            if low <= bound <= high:
                if bound == self.value:
                    return None
                half = self.value - low if bound < self.value else high - self.value
                found = max(found, ceil(self.count * (half / (self.value - bound)) ** 2))
        return found


def computed(value: float) -> Figure:
    """A figure without chance: arithmetic, virtual time, counted work."""
    return Figure(value, (value, value), is_computed=True)


def once(value: float) -> Figure:
    """A figure whose spread is not in its file."""
    return Figure(value)


def ratio(rows: Rows, above: int, below: int) -> tuple[float, NDArray[np.float64]]:
    """The ratio of the sums of two columns, and that of every resample; rows of two cases of the
    same clips are resampled alike."""
    table = np.asarray(rows, dtype=np.float64)
    first, second = table[:, above], table[:, below]
    drawn = resampled_ratios(first.tolist(), second.tolist(), resamples(len(table), 0))
    return float(first.sum() / max(1.0, second.sum())), drawn


def share_of(
    case: Rows, other: Rows, above: int, below: int, other_below: int | None = None
) -> Figure:
    """The ratio of a case divided by that of another case of the same clips, or by that of another
    column."""
    value, drawn = ratio(case, above, below)
    whole, others = ratio(other, above, below if other_below is None else other_below)
    return Figure(value / whole, central_interval(drawn / others), count=len(case))


def difference(case: Rows, other: Rows, above: int, below: int, unit: Rows | None = None) -> Figure:
    """The ratio of a case minus that of another case of the same clips, divided by the ratio of
    `unit` if there is one."""
    value, drawn = ratio(case, above, below)
    base, others = ratio(other, above, below)
    whole = 1.0 if unit is None else ratio(unit, above, below)[0]
    interval = central_interval((drawn - others) / whole)
    return Figure((value - base) / whole, interval, count=len(case))


def growth(low: tuple[Rows, Rows], high: tuple[Rows, Rows], unit: Rows, below: int) -> Figure:
    """The difference of the second pair of cases minus that of the first, as in `difference` with
    column 0 above."""
    margins, drawn = [], []
    for case, other in (low, high):
        one, first = ratio(case, 0, below)
        two, second = ratio(other, 0, below)
        margins.append(one - two)
        drawn.append(first - second)
    whole = ratio(unit, 0, below)[0]
    interval = central_interval((drawn[1] - drawn[0]) / whole)
    return Figure((margins[1] - margins[0]) / whole, interval, count=len(unit))


def times(slow: Sequence[float], fast: Sequence[float]) -> Figure:
    """How many times as fast: seconds of runs side by side."""
    logs = [log(one / two) for one, two in zip(slow, fast, strict=True)]
    return _exponential(mean(logs))


def grows(small: Sequence[float], large: Sequence[float]) -> Figure:
    """How many times as large: values of runs that are no pairs (Welch)."""
    first, second = [log(value) for value in small], [log(value) for value in large]
    errors = [stdev(values) ** 2 / len(values) for values in (first, second)]
    free = min(len(first), len(second)) - 1
    half = _student(free) * sqrt(sum(errors))
    value = fmean(second) - fmean(first)
    interval = (value - half, value + half)
    return _exponential(Figure(value, interval, count=min(len(first), len(second))))


def mean(values: Sequence[float]) -> Figure:
    """The mean of runs."""
    if len(values) < 2:
        return Figure(values[0])
    center = fmean(values)
    half = _student(len(values) - 1) * stdev(values) / sqrt(len(values))
    return Figure(center, (center - half, center + half), count=len(values))


def share(count: int, total: int) -> Figure:
    """A share of answers."""
    found = Share(count, total)
    assert found.value is not None
    return Figure(found.value, found.interval, count=total)


def paired(first: Sequence[float], second: Sequence[float]) -> Figure:
    """Share of right answers by one way minus that by another way to the same prompts."""
    won = sum(one > two for one, two in zip(first, second, strict=True))
    lost = sum(one < two for one, two in zip(first, second, strict=True))
    total = len(first)
    gains, losses = (won + 1) / (total + 2), (lost + 1) / (total + 2)
    spread = Z * sqrt((gains + losses - (gains - losses) ** 2) / (total + 2))
    middle = gains - losses
    return Figure((won - lost) / total, (middle - spread, middle + spread), count=total)


def _student(free: int) -> float:
    return STUDENT[free - 1] if free <= len(STUDENT) else 2.0


def shifted(figure: Figure, by: float) -> Figure:
    """The figure plus a number without chance."""
    assert figure.interval is not None
    low, high = figure.interval
    return replace(figure, value=figure.value + by, interval=(low + by, high + by))


def _exponential(figure: Figure) -> Figure:
    if figure.interval is None:
        return Figure(exp(figure.value))
    low, high = figure.interval
    return Figure(exp(figure.value), (exp(low), exp(high)), count=figure.count)


def at(report: Any, *path: str | int) -> Any:
    """The value at a path of a report."""
    for key in path:
        report = report[key]
    return report
