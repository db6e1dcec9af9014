"""Every metric on counters made by hand."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

import pytest

from draftlens.core.stats import DEFINITIONS, PHASES, Clock, Lane, Stats, ViewStats

# Two rows. Prefill yields 2 tokens; 5 passes emit 12 more (7 draft tokens of 20, and 5 bonus
# tokens).
STATS = Stats(
    emitted=14,
    first=2,
    passes=5,
    drafted=20,
    accepted=7,
    target_forwards=3,
    draft_forwards=12,
    accepted_by_depth=Counter({4: 1, 0: 3, 3: 1}),
    e2e=10.0,
    ttft=4.0,
)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("mean_acceptance_length", 12 / 5),
        ("mean_accepted_tokens", 7 / 5),
        ("draft_acceptance_rate", 7 / 20),
        ("ttft", 4.0),
        ("tpot", 6 / 12),
        ("tokens_per_second", 14 / 10),
        ("decode_tokens_per_second", 12 / 6),
        ("decode", 6.0),
    ],
)
def test_metric(metric: str, value: float) -> None:
    assert getattr(STATS, metric) == pytest.approx(value)
    assert STATS.to_dict()[metric] == pytest.approx(value)


def test_every_printed_metric_is_defined_and_tested() -> None:
    assert set(DEFINITIONS) == {
        *("mean_acceptance_length", "mean_accepted_tokens", "draft_acceptance_rate"),
        "mean_run_length",
        *("ttft", "tpot", "tokens_per_second", "decode_tokens_per_second"),
    }
    assert all(DEFINITIONS.values())


def test_a_run_ends_with_a_correction() -> None:
    """Of 14 tokens 4 corrected a draft token: 10 right ones in 4 runs."""
    assert Stats(emitted=14, corrections=4).mean_run_length == 2.5


def test_nothing_done_divides_by_nothing() -> None:
    assert {name: getattr(Stats(), name) for name in DEFINITIONS} == dict.fromkeys(DEFINITIONS, 0.0)


def test_an_answer_of_one_token_has_no_decode_rate() -> None:
    one = Stats(emitted=1, first=1, e2e=2.0, ttft=2.0)
    assert (one.decode_tokens_per_second, one.tokens_per_second, one.tpot) == (0.0, 0.5, 0.0)


def test_to_dict_is_json() -> None:
    values = json.loads(json.dumps(STATS.to_dict()))
    assert values["accepted_by_depth"] == {"0": 3, "3": 1, "4": 1}
    assert list(values["accepted_by_depth"]) == ["0", "3", "4"]
    assert values["phases"] == dict.fromkeys(PHASES, 0.0)
    assert values["lanes"] == {}
    assert values["views"] == {}
    assert values["target_forwards"] == 3
    assert (values["target_cache_bytes"], values["draft_cache_bytes"]) == (0, 0)
    assert set(values) >= {
        *DEFINITIONS,
        "emitted",
        "first",
        "passes",
        "drafted",
        "accepted",
        "draft_forwards",
        "e2e",
    }


def test_stats_do_not_share_their_containers() -> None:
    changed, fresh = Stats(), Stats()
    changed.phases["draft"] = 1.0
    changed.accepted_by_depth[2] += 1
    changed.lanes["draft"] = {"draft": 1.0}
    changed.views["text"] = ViewStats()
    assert fresh.phases["draft"] == 0.0
    assert not fresh.accepted_by_depth
    assert not fresh.lanes
    assert not fresh.views


def test_views_are_counted_where_they_are_asked() -> None:
    stats = Stats(views={"text": ViewStats()})
    for weight, hit in ((0.5, True), (0.25, False), (0.0, None)):
        stats.views["text"].count(weight, hit)
    values = json.loads(json.dumps(stats.to_dict()))["views"]
    assert values == {"text": {"asked": 2, "right": 1, "weight": 0.75, "tokens": 3}}


def test_clock_adds_up_phases_even_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 3.0, 10.0, 14.0, 20.0, 25.0, 26.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    clock = Clock(Stats())
    with clock.phase("draft"):
        pass
    with pytest.raises(ZeroDivisionError), clock.phase("draft"):
        _ = 1 / 0
    clock.mark_first()
    clock.mark_last()
    assert clock.stats.phases["draft"] == 2.0 + 4.0
    assert (clock.stats.ttft, clock.stats.e2e, clock.stats.decode) == (20.0, 25.0, 5.0)


def ticking(monkeypatch: pytest.MonkeyPatch, *ticks: float) -> Clock:
    """A clock that began at 0 and shows these times next."""
    times = iter([0.0, *ticks])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    return Clock(Stats())


def test_a_phase_inside_a_phase_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ticking(monkeypatch, 1.0, 3.0, 7.0, 8.0, 8.5, 10.0, 12.0, 13.0)
    with clock.phase("draft_prefill"):  # 1 to 10
        with clock.phase("prune"):  # 3 to 7
            pass
        with clock.phase("prune"):  # 8 to 8.5
            pass
    with clock.phase("draft"):  # 12 to 13: what came before is forgotten
        pass
    phases = clock.stats.phases
    assert (phases["prune"], phases["draft_prefill"], phases["draft"]) == (4.5, 4.5, 1.0)


def divide_inside(clock: Clock) -> None:
    with clock.phase("vision"), clock.phase("prune"):
        pass
    _ = 1 / 0


def test_phases_three_deep_and_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ticking(monkeypatch, 1.0, 2.0, 4.0, 7.0, 9.0, 20.0, 30.0, 31.0)
    # 1 to 20, 2 to 9 and 4 to 7, as they end one after the other.
    with pytest.raises(ZeroDivisionError), clock.phase("draft_prefill"):
        divide_inside(clock)
    with clock.phase("verify"):  # 30 to 31
        pass
    phases = clock.stats.phases
    assert (phases["prune"], phases["vision"], phases["draft_prefill"], phases["verify"]) == (
        3.0,
        4.0,
        12.0,
        1.0,
    )
    assert sum(phases.values()) == 19.0 + 1.0


def test_a_phase_inside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ticking(monkeypatch, 1.0, 2.0, 5.0, 9.0)
    with clock.phase("draft"), clock.phase("draft"):
        pass
    assert clock.stats.phases["draft"] == 8.0


def test_an_unknown_phase_is_refused() -> None:
    clock = Clock(Stats())
    with pytest.raises(KeyError), clock.phase("lunch"):
        pass
    assert set(clock.stats.phases) == set(PHASES)


def test_a_lane_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase of a lane is not nested in a phase of the clock that runs at the same time."""
    clock = ticking(monkeypatch, 1.0, 2.0, 3.0, 5.0, 9.0, 10.0, 11.0, 12.5)
    lane = clock.lane("drafting")
    assert clock.stats.lanes == {"drafting": {}}
    # 1 to 10, 2 to 9, and 3 to 5.
    with clock.phase("verify"), lane.phase("draft"), lane.phase("prune"):
        pass
    with clock.lane("drafting").phase("draft"):  # 11 to 12.5: a further lane of the same name
        pass
    assert clock.stats.lanes == {"drafting": {"prune": 2.0, "draft": 5.0 + 1.5}}
    assert clock.stats.phases == dict.fromkeys(PHASES, 0.0) | {"verify": 9.0}
    assert json.loads(json.dumps(clock.stats.to_dict()))["lanes"] == clock.stats.lanes


def test_a_lane_adds_up_phases_even_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ticking(monkeypatch, 1.0, 2.0, 5.0, 9.0, 10.0, 12.0)
    lane = clock.lane("drafting")
    with pytest.raises(ZeroDivisionError), lane.phase("draft"), lane.phase("prune"):
        _ = 1 / 0
    with lane.phase("draft"):
        pass
    assert clock.stats.lanes["drafting"] == {"prune": 3.0, "draft": 8.0 - 3.0 + 2.0}


def nest_phases(lane: Lane | Clock, barrier: threading.Barrier, times: dict[str, float]) -> None:
    """Nest phases in step with another thread; `times` receives bounds measured here."""
    start = time.perf_counter()
    with lane.phase("draft"):
        inside_start = time.perf_counter()
        barrier.wait()
        with lane.phase("prune"):
            nested_start = time.perf_counter()
            barrier.wait()
            time.sleep(0.02)
            times["nested"] = time.perf_counter() - nested_start
            barrier.wait()
        barrier.wait()
        times["inside"] = time.perf_counter() - inside_start
    times["whole"] = time.perf_counter() - start


def test_lanes_of_two_threads_do_not_disturb_each_other() -> None:
    """In both threads a phase begins and ends while a phase of the other one is running."""
    clock, barrier = Clock(Stats()), threading.Barrier(2, timeout=30)
    main_times: dict[str, float] = {}
    lane_times: dict[str, float] = {}
    lane = clock.lane("drafting")
    thread = threading.Thread(target=nest_phases, args=(lane, barrier, lane_times))
    thread.start()
    nest_phases(clock, barrier, main_times)
    thread.join()
    for phases, times in (
        (clock.stats.phases, main_times),
        (clock.stats.lanes["drafting"], lane_times),
    ):
        assert phases["draft"] >= 0
        assert phases["prune"] >= times["nested"] >= 0.02
        assert times["inside"] - 1e-6 <= sum(phases.values()) <= times["whole"] + 1e-6
    assert set(clock.stats.lanes) == {"drafting"}
    assert set(clock.stats.lanes["drafting"]) == {"draft", "prune"}


def test_time_before_the_clock_counts_in_all_times() -> None:
    clock = Clock(Stats())
    clock.begin_earlier("frames", 5.0)
    clock.mark_first()
    clock.mark_last()
    assert clock.stats.phases["frames"] == 5.0
    assert clock.stats.e2e >= clock.stats.ttft >= 5.0
