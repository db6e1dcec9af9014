"""The spans of one call, by lane (a model at work) and kind.

In a serial answer one thread runs both lanes in turn; in a parallel one the draft worker's spans
are merged. Processes of a machine share `time.perf_counter` on Linux (CLOCK_MONOTONIC).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict, Unpack

from draftlens.core.errors import InputError

TARGET = "target"
DRAFT = "draft"

WAIT = "wait"
"""Spans in which a lane waits for the other one; they count as idle."""
KINDS = ("frames", "vision", "prefill", "prune", "caption", "draft", "verify", "rollback", WAIT)

DISCARDED = "discarded"
"""The outcome of a span without a used draft token."""
OUTCOMES = ("", DISCARDED)


@dataclass(frozen=True)
class Place:
    lane: str
    kind: str


PLACES = {
    "render": Place(TARGET, "frames"),
    "layout": Place(DRAFT, "draft"),
    "read": Place(DRAFT, "draft"),
    "regions": Place(DRAFT, "draft"),
    "frames": Place(TARGET, "frames"),
    "vision": Place(TARGET, "vision"),
    "target_prefill": Place(TARGET, "prefill"),
    "prune": Place(DRAFT, "prune"),
    "caption": Place(DRAFT, "caption"),
    "draft_prefill": Place(DRAFT, "prefill"),
    "draft": Place(DRAFT, "draft"),
    "verify": Place(TARGET, "verify"),
    "rollback": Place(TARGET, "rollback"),
}
"""The place of each phase (`core.stats.PHASES`) in a serial answer."""


@dataclass(frozen=True)
class Span:
    """A stretch of time in which a lane did one thing.

    Args:
        lane: `TARGET`, `DRAFT` or the name of a further lane.
        kind: one of `KINDS`.
        start, end: seconds of `time.perf_counter`, or since the start of the call in a `Timeline`.
        tokens: draft tokens proposed (`"draft"`) or verified (`"verify"`); 0 if not counted.
        outcome: `DISCARDED` if none of the span's draft tokens was used, else empty.
        accepted: for `"verify"` the accepted draft tokens.
    """

    lane: str
    kind: str
    start: float
    end: float
    tokens: int = 0
    outcome: str = ""
    accepted: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown kind of span {self.kind!r}; known: {', '.join(KINDS)}")
        if self.outcome not in OUTCOMES:
            raise InputError(
                f"the outcome of a span is empty or {DISCARDED!r}, not {self.outcome!r}"
            )
        if not self.end >= self.start:
            raise InputError(f"a span cannot end at {self.end} if it starts at {self.start}")

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def shifted(self, seconds: float) -> Span:
        return replace(self, start=self.start + seconds, end=self.end + seconds)


class Annotation(TypedDict, total=False):
    """Fields of a `Span` that are known only after its end."""

    tokens: int
    accepted: int
    outcome: str


@dataclass(frozen=True)
class Timeline:
    """The spans of one call, sorted by start, in seconds since the call.

    Spans of one lane do not overlap, unless the lane reported them so. `first_token` and `end` are
    the times of the first and the last token.

    Example:

        >>> spans = (Span("draft", "draft", 0.0, 1.0, 3), Span("target", "verify", 1.0, 4.0, 3))
        >>> timeline = Timeline(spans, first_token=0.0, end=4.0)
        >>> timeline.lanes
        ('target', 'draft')
        >>> timeline.idle("draft"), timeline.idle_share("target")
        (3.0, 0.25)
        >>> Timeline.from_dict(timeline.to_dict()) == timeline
        True
    """

    spans: tuple[Span, ...]
    first_token: float = 0.0
    end: float = 0.0

    def __post_init__(self) -> None:
        in_order = sorted(self.spans, key=lambda span: (span.start, span.end))
        object.__setattr__(self, "spans", tuple(in_order))

    @property
    def lanes(self) -> tuple[str, ...]:
        lane_names = {span.lane for span in self.spans}
        model_lanes = [lane for lane in (TARGET, DRAFT) if lane in lane_names]
        return (*model_lanes, *sorted(lane_names - {TARGET, DRAFT}))

    def of(self, lane: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.lane == lane)

    @property
    def rounds(self) -> tuple[Span, ...]:
        """The verification passes, in order."""
        return tuple(span for span in self.spans if span.kind == "verify")

    @property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Seconds by lane and kind, in the order of `lanes` and `KINDS`."""
        sums: dict[str, dict[str, float]] = {}
        for lane in self.lanes:
            spans = self.of(lane)
            by_kind = {kind: [s.seconds for s in spans if s.kind == kind] for kind in KINDS}
            sums[lane] = {kind: sum(lengths) for kind, lengths in by_kind.items() if lengths}
        return sums

    @property
    def discarded(self) -> dict[str, float]:
        """Seconds by lane in spans with outcome `DISCARDED`."""
        sums = dict.fromkeys(self.lanes, 0.0)
        for span in self.spans:
            if span.outcome == DISCARDED:
                sums[span.lane] += span.seconds
        return sums

    def idle(self, lane: str, start: float = 0.0, end: float | None = None) -> float:
        """Seconds between two moments (by default the whole call) without work in a lane."""
        last = self.end if end is None else end
        idle = 0.0
        busy_until = start
        for span in self.of(lane):
            if span.kind == WAIT:
                continue
            idle += max(0.0, min(span.start, last) - busy_until)
            busy_until = max(busy_until, span.end)
        return idle + max(0.0, last - busy_until)

    def idle_share(self, lane: str, start: float = 0.0, end: float | None = None) -> float:
        """`idle` as a share of the time between the two moments, 0 to 1."""
        last = self.end if end is None else end
        length = last - start
        return self.idle(lane, start, last) / length if length > 0 else 0.0

    def merged(self, spans: Iterable[Span]) -> Timeline:
        return replace(self, spans=(*self.spans, *spans))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the fields, `seconds`, `discarded` and each lane's idle share."""
        return {
            "first_token": self.first_token,
            "end": self.end,
            "seconds": self.seconds,
            "discarded": self.discarded,
            "idle": {lane: self.idle_share(lane) for lane in self.lanes},
            "spans": [asdict(span) for span in self.spans],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Timeline:
        """Inverse of `to_dict`; raises InputError for missing or invalid values."""
        try:
            spans = tuple(Span(**span) for span in values["spans"])
            return cls(spans, float(values["first_token"]), float(values["end"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"these are not the values of a timeline: {error!r}") from error


@dataclass
class Track:
    """Makes spans of nested phases, for one thread at a time. The span of an outer phase is split
    around inner ones, so spans never overlap. Without `lane`, `PLACES` applies."""

    lane: str | None = None
    spans: list[Span] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0
    _last: dict[str, int] = field(default_factory=dict)  # index of the last span of each phase

    def enter(self, phase: str, moment: float) -> None:
        """Begin a phase inside the open ones; raises KeyError if it has no place."""
        if phase not in PLACES:
            raise KeyError(phase)
        if self._open and moment > self._since:
            self._add(self._open[-1], moment)
        self._open.append(phase)
        self._since = moment

    def leave(self, moment: float) -> None:
        phase = self._open.pop()
        self._add(phase, moment)
        self._last[phase] = len(self.spans) - 1
        self._since = moment

    def annotate(self, phase: str, **fields: Unpack[Annotation]) -> None:
        """Change fields of the last ended span of a phase, if there is one."""
        index = self._last.get(phase)
        if index is not None:
            self.spans[index] = replace(self.spans[index], **fields)

    def _add(self, phase: str, moment: float) -> None:
        place = PLACES[phase]
        lane = place.lane if self.lane is None else self.lane
        self.spans.append(Span(lane, place.kind, self._since, moment))


class Recorder:
    def __init__(self) -> None:
        self.own = Track()
        self._further: list[Track] = []
        self._added: list[Span] = []

    def track(self, lane: str) -> Track:
        track = Track(lane)
        self._further.append(track)
        return track

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans that were measured elsewhere, in seconds of `time.perf_counter`."""
        self._added.extend(spans)

    def spans(self) -> list[Span]:
        """All spans, in seconds of `time.perf_counter`. If another lane reports its own spans, the
        clock's phases of that lane (pruning, waiting) count as the target's."""
        elsewhere = list(self._added)
        for track in self._further:
            elsewhere += track.spans
        lanes = {span.lane for span in elsewhere}
        clock_spans = [
            _as_the_targets(span) if span.lane in lanes else span for span in self.own.spans
        ]
        return clock_spans + elsewhere


def _as_the_targets(span: Span) -> Span:
    if span.lane == TARGET:
        return span
    kind = span.kind if span.kind == "prune" else WAIT
    return Span(TARGET, kind, span.start, span.end)
