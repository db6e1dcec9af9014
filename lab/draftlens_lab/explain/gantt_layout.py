"""What the panels of a Gantt chart show, and where: rows, windows of time and spans in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from draftlens.core.timeline import DRAFT, Span, Timeline
from draftlens_lab.explain.gantt_style import Unit

LANE = 0.46
"""Inches from one lane to the next."""
RUN_GAP = 0.26
"""Inches between the lanes of two answers."""
ZOOM_ROUNDS = 10
"""Rounds that the second panel shows, at least for one answer."""


@dataclass(frozen=True)
class Row:
    """One lane of one answer."""

    run: str
    lane: str
    middle: float


@dataclass(frozen=True)
class Window:
    """What a panel shows.

    Args:
        starts: for each answer the moment at the left edge, in seconds since its call.
        length: seconds from the left to the right edge.
    """

    starts: Mapping[str, float]
    length: float
    unit: Unit

    def visible(self, run: str, spans: Iterable[Span]) -> list[Span]:
        """The spans of an answer within the panel, cut at its edges, since its left edge."""
        start = self.starts[run]
        cut = []
        for span in spans:
            left = max(span.start, start)
            right = min(span.end, start + self.length)
            if left < right:
                cut.append(replace(span, start=left - start, end=right - start))
        return cut


def whole(timelines: Mapping[str, Timeline]) -> Window:
    """The window of all answers from their calls to the last end."""
    length = max(end_of(timeline) for timeline in timelines.values())
    return Window(dict.fromkeys(timelines, 0.0), length, Unit.of(length))


def first_rounds(timelines: Mapping[str, Timeline]) -> Window | None:
    """The window of the first rounds of every answer, each from the start of its first round.

    It is as long as the longest `ZOOM_ROUNDS` rounds of an answer with a draft, or of any answer if
    none has one. The result is None if there are no rounds.
    """
    drafting = [t for t in timelines.values() if DRAFT in t.lanes and t.rounds]
    with_rounds = drafting or [t for t in timelines.values() if t.rounds]
    if not with_rounds:
        return None
    starts = {name: first_round_start(timeline) for name, timeline in timelines.items()}
    lengths = []
    for timeline in with_rounds:
        last = timeline.rounds[:ZOOM_ROUNDS][-1]
        lengths.append(last.end - first_round_start(timeline))
    length = 1.03 * max(lengths)
    return Window(starts, length, Unit.of(length))


def first_round_start(timeline: Timeline) -> float:
    """When the first round begins: with drafting, if that begins after the first token,
    else with the first token or the first verification; 0 without rounds."""
    if not timeline.rounds:
        return 0.0
    checked = timeline.rounds[0].start
    drafted = [
        span.start
        for span in timeline.spans
        if span.kind == "draft" and timeline.first_token <= span.start < checked
    ]
    return drafted[-1] if drafted else max(min(timeline.first_token, checked), 0.0)


def lane_rows(timelines: Mapping[str, Timeline]) -> list[Row]:
    """The rows of a panel from top to bottom."""
    rows = []
    top = 0.0
    for run, timeline in timelines.items():
        for lane in timeline.lanes:
            rows.append(Row(run, lane, top + LANE / 2))
            top += LANE
        top += RUN_GAP
    return rows


def end_of(timeline: Timeline) -> float:
    """When the last lane has stopped, which may be later than the last token."""
    return max([timeline.end, *(span.end for span in timeline.spans)])


def joined(spans: Sequence[Span], gap: float) -> list[Span]:
    """Spans of one kind in order, where those that at most `gap` seconds part become one."""
    result: list[Span] = []
    for span in spans:
        if result and span.start - result[-1].end <= gap:
            result[-1] = replace(result[-1], end=max(span.end, result[-1].end))
        else:
            result.append(span)
    return result
