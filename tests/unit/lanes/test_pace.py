"""When the target takes guesses."""

from __future__ import annotations

import pytest

from draftlens.lanes.pace import LONGEST_WAIT, Eager, LockStep, best_wait


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


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 6.5, 20.0])
@pytest.mark.parametrize("window", [1, 4, 8])
def test_the_best_wait_is_that_of_the_slow_twin(rate: float, ratio: float, window: int) -> None:
    waits = range(min(LONGEST_WAIT, window) + 1)
    costs = [passes_a_token(rate, ratio, window, wait) for wait in waits]
    assert costs[best_wait(rate, ratio, window)] == pytest.approx(min(costs), rel=1e-6)


def test_lock_step_knows_no_time() -> None:
    pace = LockStep(4)
    pace.passed(1.0)
    pace.guessed(1.0)
    pace.judged(False)
    assert pace == LockStep(4)
    assert pace.limit(known=10, written=13) == 17
    assert (pace.ahead, pace.most, pace.guesses_to_wait_for) == (4, 4, 0)


def test_eager_waits_as_measured() -> None:
    pace = Eager(8)
    assert pace.guesses_to_wait_for == 1
    pace.passed(0.01)
    pace.guessed(0.001)
    for _ in range(50):
        pace.judged(True)
    assert pace.rate == pytest.approx(51 / 52)
    patient = pace.guesses_to_wait_for
    assert patient == best_wait(51 / 52, 10.0, 8) > 0
    for _ in range(200):
        pace.judged(False)
    assert pace.guesses_to_wait_for < patient
    assert Eager(8, wait=3).guesses_to_wait_for == 3
    assert pace.limit(known=10, written=12) == 10 + pace.ahead
