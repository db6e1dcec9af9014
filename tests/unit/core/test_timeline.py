"""Spans of nested phases, and the sums of a timeline."""

from __future__ import annotations

import json
import time

import pytest

from draftlens.core import stats as stats_module
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.stats import PHASES, Clock, Lane, Stats
from draftlens.core.timeline import DISCARDED, KINDS, PLACES, Span, Timeline, Track

# The target verifies while the draft writes the next window, which is then thrown away.
SPANS = (
    Span("target", "prefill", 0.0, 4.0),
    Span("draft", "prefill", 2.0, 3.0),
    Span("draft", "draft", 3.0, 4.0, 3),
    Span("target", "verify", 4.0, 6.0, 3, accepted=1),
    Span("draft", "draft", 4.0, 5.0, 3, DISCARDED),
    Span("target", "wait", 6.0, 7.0),
    Span("target", "verify", 7.0, 9.0),
)
TIMELINE = Timeline(SPANS, first_token=4.0, end=10.0)


def recording(monkeypatch: pytest.MonkeyPatch, *ticks: float) -> Clock:
    """A recording clock that began at 100 and shows these times after that next."""
    times = iter([100.0, *(100.0 + tick for tick in ticks)])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock(Stats(draft_forwards=1), record=True)
    assert clock.records
    return clock


def stretches(clock: Clock) -> list[tuple[str, str, float, float]]:
    return [(s.lane, s.kind, s.start, s.end) for s in clock.timeline().spans]


def test_every_phase_has_a_place() -> None:
    assert set(PLACES) == set(PHASES)
    assert {place.kind for place in PLACES.values()} == set(KINDS) - {"wait"}


def test_a_phase_is_split_around_those_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recording(monkeypatch, 1.0, 2.0, 4.0, 5.0, 7.0, 9.0)
    with clock.phase("draft_prefill"):  # 1 to 9
        with clock.phase("prune"):  # 2 to 4
            pass
        with clock.phase("draft"):  # 5 to 7
            pass
    assert stretches(clock) == [
        ("draft", "prefill", 1.0, 2.0),
        ("draft", "prune", 2.0, 4.0),
        ("draft", "prefill", 4.0, 5.0),
        ("draft", "draft", 5.0, 7.0),
        ("draft", "prefill", 7.0, 9.0),
    ]
    sums = clock.timeline().seconds["draft"]
    phases = clock.stats.phases
    assert sums == {
        "prefill": phases["draft_prefill"],
        "prune": phases["prune"],
        "draft": phases["draft"],
    }


def test_exceptions_end_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recording(monkeypatch, 1.0, 2.0, 3.0, 5.0, 6.0, 8.0)
    with pytest.raises(ZeroDivisionError), clock.phase("draft_prefill"), clock.phase("prune"):
        _ = 1 / 0
    with clock.phase("verify"):
        pass
    assert stretches(clock) == [
        ("draft", "prefill", 1.0, 2.0),
        ("draft", "prune", 2.0, 3.0),
        ("draft", "prefill", 3.0, 5.0),
        ("target", "verify", 6.0, 8.0),
    ]


def test_an_unknown_phase_leaves_no_span_open(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recording(monkeypatch, 1.0, 2.0, 3.0)
    with pytest.raises(KeyError), clock.phase("lunch"):
        pass
    with clock.phase("verify"):
        pass
    assert stretches(clock) == [("target", "verify", 2.0, 3.0)]


def test_annotations_change_the_last_span_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recording(monkeypatch, 1.0, 2.0, 3.0, 3.0, 4.0, 4.5)
    clock.annotate("verify", tokens=9)  # no span to change
    with clock.phase("verify"):
        pass
    with clock.phase("verify"):  # as long as the clock's resolution
        pass
    with clock.phase("rollback"):
        clock.annotate("verify", tokens=5, accepted=2)
    first, second, _ = clock.timeline().spans
    assert (first.tokens, first.accepted) == (0, 0)
    assert (second.start, second.end, second.tokens, second.accepted) == (3.0, 3.0, 5, 2)


def test_lanes_of_other_threads_and_added_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clock's thread does in phases of a lane elsewhere is the target's time."""
    clock = recording(monkeypatch, *map(float, range(1, 9)))
    lane = clock.lane("helper")
    with clock.phase("prune"), lane.phase("draft_prefill"):  # 1 to 4, 2 to 3
        pass
    with clock.phase("draft"):  # 5 to 6
        pass
    assert clock.timeline().lanes == ("draft", "helper")
    clock.add_spans([Span("draft", "draft", 104.5, 105.5, 4, DISCARDED)])
    assert stretches(clock) == [
        ("target", "prune", 1.0, 4.0),
        ("helper", "prefill", 2.0, 3.0),
        ("draft", "draft", 4.5, 5.5),
        ("target", "wait", 5.0, 6.0),
    ]
    assert clock.timeline().discarded == {"target": 0.0, "draft": 1.0, "helper": 0.0}
    assert clock.stats.lanes["draft"] == {"draft": 1.0}


def test_a_call_without_a_draft_has_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recording(monkeypatch, 1.0, 2.0, 3.0, 4.0)
    clock.stats.draft_forwards = 0
    with clock.phase("draft"):
        pass
    with clock.phase("verify"):
        pass
    assert clock.timeline().lanes == ("target",)


def test_recording_is_off_by_default_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No object is made, no span is kept, and the time is read as often as before."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is recorded")

    readings = 0

    def read() -> float:
        nonlocal readings
        readings += 1
        return float(readings)

    for name in ("enter", "leave", "annotate", "_add"):
        monkeypatch.setattr(Track, name, refuse)
    monkeypatch.setattr(stats_module, "Recorder", refuse)
    monkeypatch.setattr(Span, "__post_init__", refuse)
    monkeypatch.setattr(time, "perf_counter", read)
    clock = Clock(Stats())
    with clock.phase("draft_prefill"), clock.phase("prune"):
        pass
    with clock.lane("draft").phase("draft"):
        pass
    clock.annotate("prune", tokens=2)
    clock.add_spans([])
    assert readings == 1 + 2 * 3
    assert not clock.records
    with pytest.raises(ConfigError, match="record=True"):
        clock.timeline()


def test_a_recording_clock_reads_the_time_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recording(monkeypatch, 1.0, 2.0, 3.0, 4.0)
    with clock.phase("draft_prefill"), clock.phase("prune"):
        pass
    assert clock.stats.phases["draft_prefill"] == 2.0


def test_a_lane_without_a_track_records_nothing() -> None:
    lane = Lane({"draft": 0.0})
    with lane.phase("draft"):
        pass
    lane.annotate("draft", tokens=1)
    assert lane.phases["draft"] > 0


def test_sums_and_idle_times() -> None:
    assert TIMELINE.lanes == ("target", "draft")
    assert TIMELINE.seconds == {
        "target": {"prefill": 4.0, "verify": 4.0, "wait": 1.0},
        "draft": {"prefill": 1.0, "draft": 2.0},
    }
    assert TIMELINE.discarded == {"target": 0.0, "draft": 1.0}
    assert len(TIMELINE.rounds) == 2
    assert TIMELINE.idle("target") == 2.0  # the wait and the end
    assert TIMELINE.idle("draft") == 7.0
    assert TIMELINE.idle("draft", end=4.0) == 2.0
    assert TIMELINE.idle("draft", 2.5, 4.5) == 0.0
    assert TIMELINE.idle("target", 6.5, 7.5) == 0.5
    assert TIMELINE.idle_share("target", 4.0) == pytest.approx(2 / 6)
    assert TIMELINE.idle_share("nobody") == 1.0
    assert TIMELINE.idle_share("target", 3.0, 3.0) == 0.0
    assert Timeline(()).seconds == {}


def test_overlapping_spans_of_a_lane_are_busy_once() -> None:
    spans = (Span("draft", "draft", 0.0, 3.0), Span("draft", "draft", 1.0, 2.0))
    assert Timeline(spans, 0.0, 4.0).idle("draft") == 1.0


def test_merging_sorts() -> None:
    merged = Timeline(SPANS[3:], 4.0, 10.0).merged(SPANS[:3])
    assert merged == TIMELINE


def test_json_round_trip() -> None:
    values = json.loads(json.dumps(TIMELINE.to_dict(), allow_nan=False))
    assert Timeline.from_dict(values) == TIMELINE
    assert values["idle"]["target"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"spans": [{"lane": "target"}]},
        {"spans": [{"lane": "target", "kind": "lunch", "start": 0, "end": 1}]},
        {"spans": None},
        {"end": "late"},
    ],
)
def test_values_that_are_no_timeline_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not the values of a timeline"):
        Timeline.from_dict(TIMELINE.to_dict() | change)
    with pytest.raises(InputError):
        Timeline.from_dict({})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "lunch"}, "unknown kind of span 'lunch'; known: frames, vision"),
        ({"outcome": "lost"}, "empty or 'discarded', not 'lost'"),
        ({"end": -1.0}, "cannot end at -1.0 if it starts at 0.0"),
        ({"end": float("nan")}, "cannot end at nan"),
    ],
)
def test_spans_that_make_no_sense_are_refused(fields: dict[str, object], sentence: str) -> None:
    values: dict[str, object] = {"lane": "draft", "kind": "draft", "start": 0.0, "end": 1.0}
    with pytest.raises(InputError, match=sentence):
        Span(**(values | fields))  # type: ignore[arg-type]
