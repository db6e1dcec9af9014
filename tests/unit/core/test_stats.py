"""Every metric on counters made by hand."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from draftlens.core.stats import DEFINITIONS, PHASES, Clock, Stats

# Two rows. Prefill yields 2 tokens; 5 passes emit 12 more (7 guesses of 20, and 5 bonus tokens).
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
        *("ttft", "tpot", "tokens_per_second", "decode_tokens_per_second"),
    }
    assert all(DEFINITIONS.values())


def test_nothing_done_divides_by_nothing() -> None:
    assert {name: getattr(Stats(), name) for name in DEFINITIONS} == dict.fromkeys(DEFINITIONS, 0.0)


def test_an_answer_of_one_token_has_no_decode_rate() -> None:
    one = Stats(emitted=1, first=1, e2e=2.0, ttft=2.0)
    assert (one.decode_tokens_per_second, one.tokens_per_second, one.tpot) == (0.0, 0.5, 0.0)


def test_to_dict_is_json() -> None:
    told = json.loads(json.dumps(STATS.to_dict()))
    assert told["accepted_by_depth"] == {"0": 3, "3": 1, "4": 1}
    assert list(told["accepted_by_depth"]) == ["0", "3", "4"]
    assert told["phases"] == dict.fromkeys(PHASES, 0.0)
    assert told["target_forwards"] == 3
    assert set(told) >= {
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
    one, other = Stats(), Stats()
    one.phases["draft"] = 1.0
    one.accepted_by_depth[2] += 1
    assert other.phases["draft"] == 0.0
    assert not other.accepted_by_depth


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
