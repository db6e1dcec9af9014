"""A Gantt chart of several answers to one prompt.

Every answer has a row for each lane: the target, which decides, and the draft. All answers stand on
one time axis. A second panel shows the first rounds, where the first panel is too coarse for them.
matplotlib is imported only when a chart is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from draftlens.core.errors import ConfigError, InputError
from draftlens.core.timeline import DISCARDED, Timeline
from draftlens_lab.explain.gantt_layout import LANE, first_rounds, lane_rows, whole
from draftlens_lab.explain.gantt_panel import Panel
from draftlens_lab.explain.gantt_style import (
    COLOURS,
    DPI,
    LEFT,
    LIGHT,
    NAMES,
    RIGHT,
    SHOWN_KINDS,
    SUBTITLE_LENGTH,
    TITLE_LENGTH,
    WIDTH,
    Theme,
    discarded_style,
    shortened,
    shown_kind,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlens_lab.explain.tracing import Answered

HEAD = 1.52
"""Inches above the first panel."""
PANEL_HEAD = 0.95
"""Inches between two panels: the axis of the first and the title of the second."""
FOOT = 0.75
"""Inches below the last panel, for its axis."""
ZOOM_BELOW = 0.5
"""The second panel is drawn if it shows at most this share of the longest answer."""

TITLE = "Who did what when"
ZOOM_TITLE = "The first rounds (boxed above)"
CAPTION = (
    "Bars are work, empty stretches are idle. On draft bars: tokens drafted. On verify bars: draft "
    "tokens accepted / verified."
)
"""How to read the chart; the page shows it, too."""

NEEDS_MATPLOTLIB = "the chart of who did what when needs matplotlib: pip install matplotlib"


def has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def chart(
    timelines: Mapping[str, Timeline], title: str = TITLE, subtitle: str = "", theme: Theme = LIGHT
) -> Figure:
    """Draw the timelines of some answers, one above the other.

    Every collection of bars has the id ``"run: lane: kind"`` (``": discarded"`` follows where the
    draft tokens were thrown away), so that it can be found and restyled.

    Example:

        >>> from draftlens.core.timeline import Span, Timeline
        >>> spans = (Span("draft", "draft", 0.0, 1.0, 3), Span("target", "verify", 1.0, 4.0, 3))
        >>> figure = chart({"serial": Timeline(spans, first_token=0.0, end=4.0)})
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['target', 'draft']
    """
    if not has_matplotlib():
        raise ConfigError(NEEDS_MATPLOTLIB)
    if not timelines or not all(timeline.spans for timeline in timelines.values()):
        raise InputError("a chart needs at least one timeline, and spans in each")
    from matplotlib.figure import Figure

    windows = [whole(timelines)]
    closer = first_rounds(timelines)
    if closer is not None and closer.length <= ZOOM_BELOW * windows[0].length:
        windows.append(closer)
    rows = lane_rows(timelines)
    panel_height = rows[-1].middle + LANE / 2
    height = HEAD + len(windows) * panel_height + (len(windows) - 1) * PANEL_HEAD + FOOT
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=theme.paper)
    _draw_head(figure, timelines, title, subtitle, theme)
    for number, window in enumerate(windows):
        top = HEAD + number * (panel_height + PANEL_HEAD)
        panel = Panel(figure, _axes(figure, top, panel_height), timelines, rows, window, theme)
        panel.draw_lanes()
        if number == 0:
            panel.draw_marks()
            panel.draw_boxes(windows[1:])
            panel.label_axis("time since the call")
        else:
            panel.draw_title(ZOOM_TITLE)
            panel.label_axis("time since the first round began")
    return figure


def chart_of(trace: Answered, theme: Theme = LIGHT) -> Figure:
    """The chart of an explained answer and those that it is compared with; see `chart`."""
    title = f"{TITLE}: {trace.title}"
    subtitle = f"Method {trace.method['method']}"
    return chart(by_method(trace), title, subtitle, theme)


def by_method(trace: Answered) -> dict[str, Timeline]:
    """The timelines of an explained answer by the names of their rows: the method's, with its
    schedule where it is drawn with two."""
    method = str(trace.method["method"])
    drafting = [name for name in trace.timelines if name != "plain"]
    names = {name: f"{method} {name}" if len(drafting) > 1 else method for name in drafting}
    return {names.get(name, name): timeline for name, timeline in trace.timelines.items()}


def _axes(figure: Figure, top: float, height: float) -> Axes:
    """Axes at a place given in inches; one unit of the y axis is an inch, downwards."""
    total = figure.get_figheight()
    bottom = 1 - (top + height) / total
    axes = figure.add_axes((LEFT / WIDTH, bottom, (WIDTH - LEFT - RIGHT) / WIDTH, height / total))
    axes.set_ylim(height, 0)
    return axes


def _draw_head(
    figure: Figure, timelines: Mapping[str, Timeline], title: str, subtitle: str, theme: Theme
) -> None:
    height = figure.get_figheight()
    left = 0.4 / WIDTH
    style: dict[str, Any] = {"va": "top", "parse_math": False}
    head = shortened(title, TITLE_LENGTH)
    figure.text(left, 1 - 0.3 / height, head, size=20, weight="bold", color=theme.ink, **style)
    line = CAPTION
    if subtitle:
        line = f"{shortened(subtitle, SUBTITLE_LENGTH)}. {CAPTION}"
    figure.text(left, 1 - 0.72 / height, line, size=10.5, color=theme.muted, **style)
    legend = figure.legend(
        handles=_legend_handles(timelines, theme),
        loc="upper left",
        bbox_to_anchor=(left, 1 - 0.95 / height),
        borderpad=0,
        borderaxespad=0,
        ncols=20,
        frameon=False,
        fontsize=11,
        labelcolor=theme.ink,
        handlelength=1.1,
        handleheight=1.1,
        handletextpad=0.5,
        columnspacing=1.5,
    )
    legend.set_gid("legend")


def _legend_handles(timelines: Mapping[str, Timeline], theme: Theme) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    spans = [span for timeline in timelines.values() for span in timeline.spans]
    kinds = {shown_kind(span) for span in spans}
    handles: list[Any] = [
        Patch(facecolor=COLOURS[kind], label=NAMES[kind]) for kind in SHOWN_KINDS if kind in kinds
    ]
    if any(span.outcome == DISCARDED for span in spans):
        style = discarded_style("draft", theme)
        handles.append(Patch(label="draft tokens thrown away", **style))
    handles.append(
        Line2D([], [], color=theme.ink, marker="v", linestyle="", markersize=7, label="first token")
    )
    return handles
