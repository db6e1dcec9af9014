"""How far the draft runs ahead."""

from __future__ import annotations

import pytest

from draftlens.methods.parallelvlm.schedule import (
    FIRST_WINDOW,
    LONGEST_WINDOW,
    TRIAL,
    TRIAL_AFTER,
    Round,
    Schedule,
)


def seconds_a_token(rate: float, window: int, step: float, single: float, slope: float) -> float:
    """The slow twin: the automaton of lock-step, round by round in expectation.

    A round has an empty window or one of γ - 1 tokens; the next one is full if these and the token
    that the draft wrote in place of the bonus token are accepted.
    """
    full_chance = 0.0
    seconds = tokens = 0.0
    for _ in range(3000):
        empty_chance = 1 - full_chance
        full = max(single + slope * (window - 1), window * step)
        seconds += empty_chance * max(single, window * step) + full_chance * full
        tokens += empty_chance + full_chance * sum(rate**depth for depth in range(window))
        full_chance = empty_chance * rate + full_chance * rate**window
    return seconds / tokens


def measured(rate: float, step: float, single: float, slope: float) -> Schedule:
    """A schedule that has measured these times and about this rate."""
    schedule = Schedule()
    for number in range(256):
        schedule.judged(number % 20 < round(20 * rate))
    schedule.drafted(step)
    schedule.finish(Round(single, single, 1, 1.0))
    schedule.finish(Round(single + slope * 3, single + slope * 3, 4, 2.0))
    return schedule


@pytest.mark.pairwise
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 6.5, 20.0])
@pytest.mark.parametrize("slope", [0.0, 0.05, 0.12])
def test_the_window_is_the_fastest_of_the_slow_twin(
    rate: float, ratio: float, slope: float
) -> None:
    schedule = measured(rate, 1 / ratio, 1.0, slope)
    assert schedule.rate == pytest.approx(rate, abs=0.02)
    costs = [
        seconds_a_token(schedule.rate, window, 1 / ratio, 1.0, slope)
        for window in range(1, LONGEST_WINDOW + 1)
    ]
    assert costs[schedule.window - 1] == pytest.approx(min(costs), rel=1e-3)


@pytest.mark.parametrize(
    ("ratio", "window"), [(0.9, 1), (1.7, 2), (2.8, 3), (5.1, 5), (9.01, 9), (99.0, 16)]
)
def test_where_passes_take_the_same_time_the_window_is_the_ratio_of_the_times(
    ratio: float, window: int
) -> None:
    """The paper's γ = T_p / T_q."""
    assert measured(0.95, 1 / ratio, 1.0, 0.0).window == window


def test_a_given_window_depends_on_no_time() -> None:
    schedule = Schedule(5)
    for _ in range(100):
        schedule.drafted(1.0)
        schedule.judged(False)
        schedule.finish(Round(0.1, 9.0, 5, 1.0))
    assert schedule.is_fixed
    assert schedule.drafts
    assert schedule.window == schedule.longest == 5


def test_before_anything_is_measured() -> None:
    schedule = Schedule()
    assert (schedule.window, schedule.rate, schedule.drafts) == (FIRST_WINDOW, 0.5, True)
    schedule.finish(Round(1.0, 1.0, 1, 1.0))  # the draft still reads
    assert schedule.window == FIRST_WINDOW


def play(schedule: Schedule, rounds: int, drafting: Round, plain: float) -> list[bool]:
    """Rounds beside the draft and plain ones of some seconds; in which the draft wrote."""
    drafted = []
    for _ in range(rounds):
        drafted.append(schedule.drafts)
        schedule.finish(drafting if schedule.drafts else Round(plain, plain, 1, 1.0))
    return drafted


def test_a_draft_that_does_not_pay_is_stopped() -> None:
    drafted = play(Schedule(), 200, drafting=Round(1.4, 1.5, 1, 1.1), plain=1.0)
    assert all(drafted[:TRIAL_AFTER])
    assert not any(drafted[TRIAL_AFTER:])


def test_a_draft_that_pays_goes_on_after_few_trials() -> None:
    drafted = play(Schedule(), 400, drafting=Round(1.1, 1.1, 1, 1.4), plain=1.0)
    assert TRIAL <= drafted.count(False) < 0.05 * len(drafted)
    assert drafted[-1]


def test_a_draft_that_surely_pays_is_never_tried() -> None:
    assert all(play(Schedule(), 400, drafting=Round(1.5, 1.5, 5, 3.0), plain=1.0))


def test_rows_that_join_let_a_draft_try_again() -> None:
    """Not one that drafts, or that a trial has stopped for a moment."""
    slow, fast = Round(1.4, 1.5, 1, 1.1), Round(1.1, 1.1, 1, 3.0)
    schedule = Schedule()
    play(schedule, TRIAL_AFTER - 1, slow, plain=1.0)
    schedule.resume()
    assert play(schedule, 2, slow, plain=1.0) == [True, False]
    schedule.resume()
    assert not any(play(schedule, 50, slow, plain=1.0))
    schedule.resume()
    assert play(schedule, TRIAL_AFTER, slow, plain=1.0) == [True] * TRIAL_AFTER
    assert not any(play(schedule, 50, slow, plain=1.0))
    schedule.resume()
    assert all(play(schedule, 50, fast, plain=1.0))
