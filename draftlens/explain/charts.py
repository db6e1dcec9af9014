"""The two bar charts of the page as inline SVG; their colours are those of the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.explain.layout import axis_top
from draftlens.explain.tracing import Round
from draftlens.explain.views import View, mean_share, view_noun

WIDTH = 1150
"""Width of all bars of a chart, in SVG units."""
HEIGHT = 132
"""Height of the highest bar, in SVG units."""
MAX_PITCH = 130.0
"""Distance between the left edges of two bars, at most."""
PHASE_COLOURS = {
    "render": "#8fa8b8",
    "layout": "#d9a441",
    "read": "#c98b2b",
    "regions": "#e0b860",
    "frames": "#9aa5b8",
    "vision": "#5b7fb5",
    "target_prefill": "#34518c",
    "prune": "#b0578d",
    "caption": "#7a5c3e",
    "draft_prefill": "#8a6bbf",
    "draft": "#ffb000",
    "verify": "#2f8f83",
    "rollback": "#c9c4b8",
}
"""Colour of each phase (`core.stats.PHASES`)."""


@dataclass(frozen=True)
class _Column:
    """The horizontal place of a bar."""

    left: float
    width: float

    def rectangle(self, kind: str, bottom: float, height: float) -> str:
        """Return a rectangle of a CSS class."""
        top = HEIGHT - bottom - height
        return (
            f'<rect class="{kind}" x="{self.left:.1f}" y="{top:.1f}" '
            f'width="{self.width:.1f}" height="{max(0.0, height):.1f}"/>'
        )

    def hover_area(self) -> str:
        """Return an area of full height, so that the pointer also meets a short bar above it."""
        return (
            f'<rect class="hit" x="{self.left:.1f}" y="0" '
            f'width="{self.width:.1f}" height="{HEIGHT}"/>'
        )


def rounds_chart(rounds: Sequence[Round]) -> str:
    """Return a bar for each round: the accepted tokens and, above, the target's own token."""
    largest = max((entry.emitted for entry in rounds), default=1)
    unit = HEIGHT / largest
    columns = _columns(len(rounds))
    bars = []
    for number, (entry, column) in enumerate(zip(rounds, columns, strict=True), 1):
        accepted = entry.accepted * unit
        bonus = column.rectangle("bonus", accepted, entry.emitted * unit - accepted)
        drafted = column.rectangle("kept", 0, accepted)
        bars.append(f'<g data-round="{number}">{column.hover_area()}{bonus}{drafted}</g>')
    step = -(-largest // 4)
    lines = [_grid_line(str(count), count * unit) for count in range(0, largest + 1, step)]
    return _svg("".join([*lines, *bars]) + _axis_labels(columns, "round"))


def shares_chart(views: Sequence[View]) -> str:
    """Return a bar for the share of cells kept in each view, and a dashed line at the mean."""
    top = axis_top([view.share for view in views])
    columns = _columns(len(views))
    bars = []
    for index, (view, column) in enumerate(zip(views, columns, strict=True)):
        bar = column.rectangle("kept", 0, view.share / top * HEIGHT)
        bars.append(f'<g data-view="{index}">{column.hover_area()}{bar}</g>')
    lines = _grid_line("0%", 0) + _grid_line(f"{top * 100:.3g}%", HEIGHT)
    mean_line = _mean_line(mean_share(views), top)
    labels = _axis_labels(columns, view_noun(views))
    return _svg(lines + "".join(bars) + mean_line + labels)


def _mean_line(mean: float, top: float) -> str:
    """A dashed line, with its share beside it unless that would cover another label."""
    position = mean / top
    y = HEIGHT * (1 - position)
    line = f'<line class="mean" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
    if not 0.15 < position < 0.85:
        return line
    return f'{line}<text x="{WIDTH + 6}" y="{y + 4:.1f}">{mean * 100:.1f}%</text>'


def _columns(count: int) -> list[_Column]:
    pitch = min(WIDTH / max(1, count), MAX_PITCH)
    width = pitch * 0.82 if pitch > 5 else pitch
    return [_Column(index * pitch, width) for index in range(count)]


def _grid_line(label: str, height: float) -> str:
    y = HEIGHT - height
    return (
        f'<line class="floor" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{WIDTH + 6}" y="{y + 4:.1f}">{label}</text>'
    )


def _axis_labels(columns: Sequence[_Column], noun: str) -> str:
    """The numbers of the first and the last bar below the axis."""
    if not columns:
        return ""
    y = HEIGHT + 18
    first = f'<text x="0" y="{y}">{noun} 1</text>'
    if len(columns) == 1:
        return first
    right = columns[-1].left + columns[-1].width
    return f'{first}<text x="{right:.1f}" y="{y}" text-anchor="end">{len(columns)}</text>'


def _svg(content: str) -> str:
    return f'<svg viewBox="0 -10 {WIDTH + 46} {HEIGHT + 34}" role="img">{content}</svg>'
