"""Two bar charts as inline SVG; colours come from the page's style."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.core.stats import PHASES
from draftlens.explain.sheet import top_of
from draftlens.explain.trace import Round
from draftlens.explain.views import View

WIDTH, HEIGHT = 1150, 132
"""Of a chart's bars, in units of its own."""
WIDEST = 130.0
"""Of one bar."""
COLOURS = ("#9aa5b8", "#5b7fb5", "#34518c", "#b0578d", "#8a6bbf", "#ffb000", "#2f8f83", "#c9c4b8")
PHASE_COLOURS = dict(zip(PHASES, COLOURS, strict=True))


def rounds_chart(rounds: Sequence[Round]) -> str:
    """A bar for each round: what it accepted, and the target's own token on top."""
    most = max((one.emitted for one in rounds), default=1)
    bars = []
    for number, (left, thick) in enumerate(_places(len(rounds)), 1):
        one = rounds[number - 1]
        accepted, emitted = (count / most * HEIGHT for count in (one.accepted, one.emitted))
        parts = _bar(left, thick, accepted, emitted - accepted, "bonus") + _bar(
            left, thick, 0, accepted, "kept"
        )
        bars.append(f'<g data-round="{number}">{_hit(left, thick)}{parts}</g>')
    step = -(-most // 4)
    lines = "".join(_line(count, count / most * HEIGHT) for count in range(0, most + 1, step))
    return _svg(lines + "".join(bars) + _ends(len(rounds), "round"))


def shares_chart(views: Sequence[View]) -> str:
    """A bar for each view: kept cells / all cells, and a dashed line at the share of all."""
    high = top_of([view.share for view in views])
    bars = [
        f'<g data-view="{index}">{_hit(left, thick)}{_bar(left, thick, 0, view.share / high * HEIGHT, "kept")}</g>'
        for index, (view, (left, thick)) in enumerate(zip(views, _places(len(views)), strict=True))
    ]
    mean = sum(view.counts[0] for view in views) / max(1, sum(view.counts[1] for view in views))
    lines = _line("0 %", 0) + _line(f"{high * 100:.3g} %", HEIGHT)
    height = HEIGHT * (1 - mean / high)
    dashes = f'<line class="mean" x1="0" x2="{WIDTH}" y1="{height:.1f}" y2="{height:.1f}"/>'
    text = (
        f'<text x="{WIDTH + 6}" y="{height + 4:.1f}">{mean * 100:.1f} %</text>'
        if 0.15 < mean / high < 0.85
        else ""
    )
    return _svg(
        lines
        + "".join(bars)
        + dashes
        + text
        + _ends(len(views), "frame" if views[0].when else "view")
    )


def _places(count: int) -> list[tuple[float, float]]:
    """Left edge and width of each bar."""
    pitch = min(WIDTH / max(1, count), WIDEST)
    return [(index * pitch, pitch * 0.82 if pitch > 5 else pitch) for index in range(count)]


def _bar(left: float, thick: float, bottom: float, tall: float, kind: str) -> str:
    top = HEIGHT - bottom - tall
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{thick:.1f}" height="{max(0.0, tall):.1f}"/>'


def _hit(left: float, thick: float) -> str:
    """Lets a short bar be met by a pointer above it."""
    return f'<rect class="hit" x="{left:.1f}" y="0" width="{thick:.1f}" height="{HEIGHT}"/>'


def _line(name: object, height: float) -> str:
    at = HEIGHT - height
    return (
        f'<line class="floor" x1="0" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{WIDTH + 6}" y="{at + 4:.1f}">{name}</text>'
    )


def _ends(count: int, kind: str) -> str:
    """The first and last number below the axis."""
    if not count:
        return ""
    left, thick = _places(count)[-1]
    last = (
        f'<text x="{left + thick:.1f}" y="{HEIGHT + 18}" text-anchor="end">{count}</text>'
        if count > 1
        else ""
    )
    return f'<text x="0" y="{HEIGHT + 18}">{kind} 1</text>{last}'


def _svg(content: str) -> str:
    return f'<svg viewBox="0 -10 {WIDTH + 46} {HEIGHT + 34}" role="img">{content}</svg>'
