"""When the target takes guesses."""

from __future__ import annotations

import pytest

from draftlens.methods.parallelvlm.schedule import (
    LIKELY,
    LONGEST_WAIT,
    REST,
    TRIAL,
    TRIAL_AFTER,
    Eager,
    LockStep,
    best_wait,
    best_window,
)


def passes_a_token(rate: float, ratio: float, window: int, wait: int) -> float:
    """The slow twin: cost of a token from the expected cost of one run between corrections.

    A run of k right guesses has probability (1 - β)β^k. The correcting pass costs 1, the wait s and
    half a step, and every further pass checks up to γ guesses: the first one after the wait s + 1.
    """
    cost = tokens = 0.0
    for run in range(4000):
        probability = (1 - rate) * rate**run
        further = 0
        checked = wait + 1
        while checked <= run:
            further += 1
            checked += window
        waited = wait + 0.5 if wait else 0.0
        cost += probability * (1 + waited / ratio + further)
        tokens += probability * (run + 1)
    return cost / tokens


@pytest.mark.pairwise
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 6.5, 20.0])
@pytest.mark.parametrize("window", [1, 4, 8])
def test_the_best_wait_is_that_of_the_slow_twin(rate: float, ratio: float, window: int) -> None:
    longest = min(LONGEST_WAIT, window)
    waits = [wait for wait in range(longest + 1) if rate**wait >= LIKELY]
    costs = [passes_a_token(rate, ratio, window, wait) for wait in waits]
    assert costs[best_wait(rate, ratio, window)] == pytest.approx(min(costs), rel=1e-6)


def test_lock_step_knows_no_time() -> None:
    pace = LockStep(4)
    pace.passed(1.0, 0.0, 1.0)
    pace.guessed(1.0)
    pace.judged(False)
    assert pace == LockStep(4)
    assert pace.limit(known=10, written=13) == 17
    assert (pace.ahead, pace.window, pace.guesses_to_wait_for(True)) == (4, 4, 0)


def test_eager_follows_what_is_measured() -> None:
    pace = Eager()
    assert pace.ratio is None
    assert pace.guesses_to_wait_for(is_new=True) == 0
    pace.passed(0.0101, 0.0, 1.0)
    pace.guessed(0.001)
    for _ in range(50):
        pace.judged(True)
    assert pace.rate == pytest.approx(51 / 52)
    assert pace.window == 9
    assert pace.guesses_to_wait_for(is_new=False) == 9
    assert pace.guesses_to_wait_for(is_new=True) == best_wait(51 / 52, 10.1, 9)
    for _ in range(300):
        pace.judged(False)
    assert pace.guesses_to_wait_for(is_new=True) == 0
    assert pace.limit(known=10, written=12) == 10 + pace.ahead


def test_what_the_caller_names_is_fixed() -> None:
    pace = Eager(8, wait=3)
    pace.passed(1.0, 0.0, 1.0)
    pace.guessed(1.0)
    assert pace.window == pace.longest == 8
    assert pace.guesses_to_wait_for(is_new=True) == 3
    assert Eager(2, wait=3).guesses_to_wait_for(is_new=True) == 2


@pytest.mark.parametrize(
    ("ratio", "window"), [(0.3, 1), (1.68, 1), (2.8, 2), (5.1, 4), (9.01, 8), (99.0, 16)]
)
def test_the_window_is_what_the_draft_fills(ratio: float, window: int) -> None:
    assert best_window(ratio, 0.95, 16) == window
    assert best_window(ratio, 0.5, 16) == min(window, 8)


def test_a_slow_draft_does_not_hold_up_the_target() -> None:
    pace = Eager()
    pace.guessed(1.0)
    pace.passed(1.2, 0.0, 1.0)
    assert pace.guesses_to_wait_for(is_new=False) == 0


def play(pace: Eager, passes: int, drafting: tuple[float, float], plain: float) -> list[bool]:
    """Passes with seconds and tokens beside the draft, and seconds of plain ones; in which of them
    the draft rested."""
    rested = []
    for _ in range(passes):
        rested.append(pace.rests)
        if pace.rests:
            pace.passed(plain, 0.0, 1.0)
        else:
            pace.passed(drafting[0], 0.0, drafting[1])
    return rested


def test_a_draft_that_does_not_pay_rests_most_of_the_time() -> None:
    pace = Eager()
    rested = play(pace, 400, drafting=(1.5, 1.1), plain=1.0)
    assert not any(rested[:TRIAL_AFTER])
    assert all(rested[TRIAL_AFTER : TRIAL_AFTER + TRIAL + REST])
    assert sum(rested) > 0.75 * len(rested)
    resting = Eager()
    play(resting, TRIAL_AFTER, drafting=(1.5, 1.1), plain=1.0)
    assert resting.rests
    assert resting.limit(known=10, written=12) == 10
    assert resting.guesses_to_wait_for(is_new=False) == 0


def test_a_draft_that_pays_rests_for_trials_only() -> None:
    rested = play(Eager(), 400, drafting=(1.1, 1.5), plain=1.0)
    assert TRIAL <= sum(rested) < 0.1 * len(rested)
    assert not any(play(Eager(), 400, drafting=(1.5, 2.5), plain=1.0))
