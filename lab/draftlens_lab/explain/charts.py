"""The two bar charts of the page. A template draws them as inline SVG in the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens_lab.explain.layout import axis_top
from draftlens_lab.explain.tracing import Round
from draftlens_lab.explain.views import View, mean_share, view_noun

WIDTH = 1150
"""Width of all bars of a chart, in SVG units."""
HEIGHT = 132
"""Height of the highest bar, in SVG units."""
MAX_PITCH = 130.0
"""Distance between the left edges of two bars, at most."""


@dataclass(frozen=True)
class Bar:
    """A rectangle of a column.

    Args:
        top: distance from the top of the chart, in SVG units.
        height: in SVG units.
    """

    kind: str
    top: float
    height: float

    @classmethod
    def above(cls, kind: str, bottom: float, height: float) -> Bar:
        """A bar that begins `bottom` units above the floor."""
        return cls(kind, HEIGHT - bottom - height, max(0.0, height))


@dataclass(frozen=True)
class Column:
    """The bars of one round or view, from top to bottom.

    Args:
        left, width: in SVG units.
        bars: they share left edge and width.
    """

    number: int
    left: float
    width: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Mark:
    """A horizontal line.

    Args:
        y: distance from the top of the chart, in SVG units.
        label: beside the line; empty for none.
    """

    y: float
    label: str


@dataclass(frozen=True)
class BarChart:
    """Bars over a scale.

    Args:
        mean: a dashed line; None for none.
    """

    kind: str
    noun: str
    columns: tuple[Column, ...]
    scale: tuple[Mark, ...]
    mean: Mark | None = None
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def right(self) -> float:
        """The right edge of the last column."""
        return self.columns[-1].left + self.columns[-1].width


def rounds_chart(rounds: Sequence[Round]) -> BarChart:
    """A bar for each round: the accepted tokens and, above, the target's own token."""
    largest = max((entry.emitted for entry in rounds), default=1)
    unit = HEIGHT / largest
    pitch, width = _spacing(len(rounds))
    columns = []
    for index, entry in enumerate(rounds):
        accepted = entry.accepted * unit
        bonus = Bar.above("bonus", accepted, entry.emitted * unit - accepted)
        bars = (bonus, Bar.above("kept", 0, accepted))
        columns.append(Column(index + 1, index * pitch, width, bars))
    step = -(-largest // 4)
    scale = [_mark(str(count), count * unit) for count in range(0, largest + 1, step)]
    return BarChart("round", "round", tuple(columns), tuple(scale))


def shares_chart(views: Sequence[View]) -> BarChart:
    """A bar for the share of cells kept in each view, and a dashed line at the mean."""
    top = axis_top([view.share for view in views])
    pitch, width = _spacing(len(views))
    columns = []
    for index, view in enumerate(views):
        bar = Bar.above("kept", 0, view.share / top * HEIGHT)
        columns.append(Column(index, index * pitch, width, (bar,)))
    scale = (_mark("0%", 0), _mark(f"{top * 100:.3g}%", HEIGHT))
    mean = _mean_mark(mean_share(views), top)
    return BarChart("view", view_noun(views), tuple(columns), scale, mean)


def _mean_mark(mean: float, top: float) -> Mark:
    """The line of the mean, with its share beside it unless that would cover another label."""
    position = mean / top
    label = f"{mean * 100:.1f}%" if 0.15 < position < 0.85 else ""
    return _mark(label, position * HEIGHT)


def _mark(label: str, height: float) -> Mark:
    return Mark(HEIGHT - height, label)


def _spacing(count: int) -> tuple[float, float]:
    pitch = min(WIDTH / max(1, count), MAX_PITCH)
    width = pitch * 0.82 if pitch > 5 else pitch
    return pitch, width
