"""One panel of a Gantt chart: the bars of all lanes in a window of time, and their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftlens.core.timeline import DISCARDED, OUTCOMES, WAIT, Span, Timeline
from draftlens_lab.explain.gantt_layout import Row, Window, end_of, joined
from draftlens_lab.explain.gantt_style import (
    COLOURS,
    DPI,
    LEFT,
    NAMES,
    RIGHT,
    SHOWN_KINDS,
    WIDTH,
    Theme,
    discarded_style,
    pale,
    shown_kind,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAIT_BAR = 0.08
"""Height of the bar of a wait in inches."""
BAR = 0.36
"""Height of a bar in inches."""
END_ROOM = 0.11
"""Share of the axis after the longest answer, for the label of its duration."""
TEXT_ASPECT = 0.62
"""Width / height of a digit."""
DENSE = 10.0
"""Pixels of a lane for each of its bars below which bars are neither hatched nor moved to whole
pixels."""
INVISIBLE = 0.1
"""Pixels of a gap between two such bars up to which they are drawn as one, since the edges of many
bars would make them paler than they are."""
EDGE_FROM = 0.12
"""Inches of the narrowest bar of a kind from which bars have edges."""
LABEL_SIZE = 9.5
"""Points of the labels of bars."""
SMALLEST_LABEL = 5.5
"""Points of the smallest counts; smaller ones are left out, in the whole lane."""
COUNTED = ("draft", "verify")
"""Kinds of bars with counts of draft tokens."""
DARK_LABELS = ("draft", "frames")
"""Kinds with light bars, and so with dark labels."""
DARK_LABEL = "#15171c"
LIGHT_LABEL = "#ffffff"


@dataclass(frozen=True)
class Panel:
    """Axes with the lanes of all answers; one unit of the y axis is an inch, downwards."""

    figure: Figure
    axes: Axes
    timelines: Mapping[str, Timeline]
    rows: Sequence[Row]
    window: Window
    theme: Theme

    @property
    def is_whole(self) -> bool:
        """Whether the panel shows all answers from call to end."""
        return not any(self.window.starts.values())

    @property
    def right(self) -> float:
        """The right end of the axis, in its unit."""
        room = 1 / (1 - END_ROOM) if self.is_whole else 1.0
        return self.window.length * room * self.window.unit.per_second

    @property
    def inches_per_unit(self) -> float:
        """Inches that one unit of the time axis takes."""
        return (WIDTH - LEFT - RIGHT) / self.right

    def _count_size(self, row: Row) -> float:
        """Points of the counts in a lane, so that each whole bar has room for its own; 0 for none,
        where some bar is too narrow for that."""
        start = self.window.starts[row.run]
        sizes = [LABEL_SIZE]
        for span in self.timelines[row.run].of(row.lane):
            is_whole = start <= span.start and span.end <= start + self.window.length
            if span.kind in COUNTED and is_whole and label_of(span):
                sizes.append(self._size_for(label_of(span), span))
        return min(sizes) if min(sizes) >= SMALLEST_LABEL else 0.0

    def _size_for(self, text: str, span: Span) -> float:
        inches = span.seconds * self.window.unit.per_second * self.inches_per_unit
        return inches * 72 / ((len(text) + 0.4) * TEXT_ASPECT)

    def draw_lanes(self) -> None:
        """The bars of all lanes with their labels, names and idle shares."""
        self.axes.set_xlim(0, self.right)
        self.axes.set_facecolor(self.theme.paper)
        self.axes.set_yticks([row.middle for row in self.rows], [row.lane for row in self.rows])
        for row in self.rows:
            self._draw_lane(row)
        for run in self.timelines:
            self._draw_name(run)
        self._write_right(-0.12, "idle", self.theme.muted)

    def draw_marks(self) -> None:
        """The first token and the end of each answer."""
        for run, timeline in self.timelines.items():
            top, bottom = self._extent(run)
            if timeline.first_token > 0:
                self._mark_first_token(timeline, top, bottom)
            self._write_duration(run, timeline, (top + bottom) / 2)

    def draw_boxes(self, closer: Sequence[Window]) -> None:
        """A box around what the next panel shows."""
        from matplotlib.patches import Rectangle

        per_second = self.window.unit.per_second
        for window in closer:
            for run, timeline in self.timelines.items():
                top, bottom = self._extent(run)
                start = window.starts[run]
                length = max(0.0, min(window.length, timeline.end - start))
                box = Rectangle(
                    (start * per_second, top - 0.03),
                    length * per_second,
                    bottom - top + 0.06,
                    fill=False,
                    edgecolor=self.theme.ink,
                    linewidth=1.0,
                    zorder=5,
                    gid=f"{run}: first rounds",
                )
                self.axes.add_patch(box)

    def draw_title(self, title: str) -> None:
        height = self.axes.get_ylim()[0]
        self.axes.text(
            (0.4 - LEFT) / (WIDTH - LEFT - RIGHT),
            1 + 0.2 / height,
            title,
            transform=self.axes.transAxes,
            size=13,
            weight="bold",
            color=self.theme.ink,
        )

    def label_axis(self, label: str) -> None:
        """Labels, ticks and limits of both axes."""
        self.axes.set_xlabel(f"{label}, {self.window.unit.name}", size=11, color=self.theme.muted)
        self.axes.tick_params(axis="x", colors=self.theme.muted, labelsize=10.5, length=4)
        self.axes.tick_params(axis="y", length=0, labelsize=12.5, labelcolor=self.theme.ink, pad=8)
        for side, spine in self.axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(self.theme.muted)
        self.axes.grid(axis="x", color=self.theme.track, linewidth=0.6, alpha=0.7)
        self.axes.set_axisbelow(True)

    def _draw_lane(self, row: Row) -> None:
        timeline = self.timelines[row.run]
        per_second = self.window.unit.per_second
        visible = self.window.visible(row.run, timeline.of(row.lane))
        left = self.window.starts[row.run]
        length = min(end_of(timeline) - left, self.window.length)
        track = [0.0, max(0.0, length) * per_second]
        self.axes.plot(track, [row.middle] * 2, color=self.theme.track, lw=1.2, zorder=1)
        is_dense = len(visible) * DENSE > (WIDTH - LEFT - RIGHT) * DPI
        for kind in SHOWN_KINDS:
            for outcome in OUTCOMES:
                spans = [s for s in visible if shown_kind(s) == kind and s.outcome == outcome]
                if spans:
                    self._draw_bars(row, spans, is_dense)
        count_size = self._count_size(row)
        for span in visible:
            self._label(row, span, count_size)
        end = min(left + self.window.length, timeline.end)
        share = timeline.idle_share(row.lane, left, end)
        self._write_right(row.middle, f"{share * 100:.0f}%", self.theme.ink)

    def _draw_bars(self, row: Row, spans: Sequence[Span], is_dense: bool) -> None:
        """All bars of one kind and outcome, as one collection.

        Bars that are hardly wider than a pixel must not be moved to whole pixels, which would make
        patterns where there are none, and edges would hide much of narrow bars.
        """
        kind = shown_kind(spans[0])
        per_second = self.window.unit.per_second
        height = WAIT_BAR if kind == WAIT else BAR
        gid = f"{row.run}: {row.lane}: {kind}"
        style: dict[str, Any] = {"facecolor": COLOURS[kind], "edgecolor": self.theme.paper}
        if spans[0].outcome == DISCARDED:
            style = discarded_style(kind, self.theme)
            gid += f": {DISCARDED}"
        if is_dense:
            style["hatch"] = None
            spans = joined(spans, INVISIBLE / DPI / self.inches_per_unit / per_second)
        places = [(span.start * per_second, span.seconds * per_second) for span in spans]
        bottom = row.middle - height / 2
        bars = self.axes.broken_barh(places, (bottom, height), zorder=3, gid=gid, **style)
        narrowest = min(width for _, width in places) * self.inches_per_unit
        bars.set_linewidth(0.6 if narrowest >= EDGE_FROM else 0.0)
        bars.set_snap(not is_dense)

    def _label(self, row: Row, span: Span, count_size: float) -> None:
        text = label_of(span)
        unit = self.window.unit
        size = count_size if span.kind in COUNTED else LABEL_SIZE
        if not text or not size or self._size_for(text, span) < size:
            return
        colour = DARK_LABEL if span.kind in DARK_LABELS else LIGHT_LABEL
        box = None
        if span.outcome == DISCARDED:
            colour = self.theme.ink
            box = {"facecolor": pale(span.kind, self.theme), "linewidth": 0.0, "pad": 1.5}
        self.axes.text(
            (span.start + span.end) / 2 * unit.per_second,
            row.middle + 0.01,
            text,
            size=size,
            color=colour,
            bbox=box,
            ha="center",
            va="center",
            zorder=4,
            gid=f"{row.run}: {row.lane}: label",
        )

    def _extent(self, run: str) -> tuple[float, float]:
        middles = [row.middle for row in self.rows if row.run == run]
        return middles[0] - BAR / 2, middles[-1] + BAR / 2

    def _draw_name(self, run: str) -> None:
        top, bottom = self._extent(run)
        self.axes.text(
            (0.4 - LEFT) / (WIDTH - LEFT - RIGHT),
            (top + bottom) / 2,
            run.replace(" ", "\n"),
            transform=self.axes.get_yaxis_transform(),
            size=13,
            weight="bold",
            color=self.theme.ink,
            va="center" if " " in run else "center_baseline",
        )

    def _mark_first_token(self, timeline: Timeline, top: float, bottom: float) -> None:
        place = timeline.first_token * self.window.unit.per_second
        self.axes.plot([place] * 2, [top - 0.04, bottom], color=self.theme.ink, lw=1.1, zorder=6)
        self.axes.plot(
            [place], [top - 0.07], marker="v", ms=7, color=self.theme.ink, zorder=6, clip_on=False
        )

    def _write_duration(self, run: str, timeline: Timeline, middle: float) -> None:
        text = self.window.unit.text(timeline.end)
        reference = next(iter(self.timelines))
        if run != reference and timeline.end > 0:
            text += f"\n{self.timelines[reference].end / timeline.end:.2f}x {reference}"
        self.axes.annotate(
            text,
            (end_of(timeline) * self.window.unit.per_second, middle),
            xytext=(8, 0),
            textcoords="offset points",
            size=12.5,
            weight="bold",
            color=self.theme.ink,
            va="center",
            linespacing=1.35,
            annotation_clip=False,
            gid=f"{run}: duration",
        )

    def _write_right(self, middle: float, text: str, colour: str) -> None:
        self.axes.text(
            1 + (RIGHT - 0.4) / (WIDTH - LEFT - RIGHT),
            middle,
            text,
            transform=self.axes.get_yaxis_transform(),
            size=12.5,
            color=colour,
            ha="right",
            va="center_baseline",
        )


def label_of(span: Span) -> str:
    """The label of a bar: counts of draft tokens, or the name of a long phase."""
    if span.kind == "verify":
        return f"{span.accepted}/{span.tokens}" if span.tokens else ""
    if span.kind == "draft":
        return str(span.tokens) if span.tokens else ""
    return "" if span.kind in (WAIT, "rollback") else NAMES[span.kind]
