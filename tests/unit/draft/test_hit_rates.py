"""Draft tokens are counted by depth and rank, smoothed where there are few trials, and forgotten
after a while."""

from __future__ import annotations

import random

import pytest

from draftlens.core.tree import chain, from_paths
from draftlens.draft.hit_rates import MAX_DEPTH, MAX_TRIALS, PRIOR, PRIOR_WEIGHT, RANKS, HitRates

PAIRS = from_paths([[0], [1], [0, 0], [1, 0]])
"""Nodes 0 and 1, then 2 after 0 and 3 after 1."""


def test_counts_by_depth_and_rank() -> None:
    rates = HitRates()
    tree = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
    for path in ((0, 3), (1,), ()):  # ranks 0 then 1; rank 1; nothing
        rates.count(tree, path)
    # After a first choice (0) or another (1), depth, rank.
    trials = {(0, 0, 0): 3, (0, 0, 1): 3, (0, 1, 0): 1, (0, 1, 1): 1, (1, 1, 0): 1}
    assert {key: n for key, n in rates.trials.items() if n} == trials
    assert {key: n for key, n in rates.hits.items() if n} == {
        (0, 0, 0): 1,
        (0, 0, 1): 1,
        (0, 1, 1): 1,
    }


def test_an_empty_tree_counts_nothing() -> None:
    rates = HitRates()
    rates.count(chain(0), ())
    assert not rates.trials


def test_the_prior_weighs_a_few_rounds() -> None:
    rates = HitRates()
    assert rates.chances() == [[list(PRIOR)] * MAX_DEPTH] * 2
    rates.count(chain(1), ())
    expected = (
        PRIOR_WEIGHT * PRIOR[0] / (PRIOR_WEIGHT + 1)
    )  # of all depths together, and once more of the first
    first, second = (row[0] for row in rates.chances()[0][:2])
    assert second == pytest.approx(expected)
    assert first == pytest.approx(PRIOR_WEIGHT * expected / (PRIOR_WEIGHT + 1))


def test_chances_come_near_the_truth_and_never_rise_with_the_rank() -> None:
    rates, rng, truth = HitRates(), random.Random(0), [0.75, 0.1, 0.05, 0.02]
    wide = from_paths([[rank] for rank in range(4)])
    for _ in range(600):
        draw = rng.random()
        rates.count(wide, next(((rank,) for rank in range(4) if draw < sum(truth[: rank + 1])), ()))
    row_chances = rates.chances()[0][0]
    assert row_chances[0] == pytest.approx(0.75, abs=0.05)
    assert row_chances[1] == pytest.approx(0.1, abs=0.04)
    for table in rates.chances():
        assert [len(row) for row in table] == [RANKS] * MAX_DEPTH
        assert all(row == sorted(row, reverse=True) for row in table)


def test_a_rank_that_is_right_more_often_than_a_better_one_is_held_down() -> None:
    rates = HitRates()
    for _ in range(50):
        rates.count(PAIRS, (1, 3))
    first, second = rates.chances()[0][0][:2]
    assert first == second < 0.1


def test_tokens_after_a_second_choice_are_counted_separately() -> None:
    rates = HitRates()
    for _ in range(50):
        rates.count(PAIRS, (0,))
        rates.count(PAIRS, (1, 3))
    after_first, after_second = rates.chances()
    assert after_first[1][0] < 0.1
    assert after_second[1][0] > 0.9


def test_the_past_is_forgotten() -> None:
    """After a change of task and twice `MAX_TRIALS` rounds, the old rate has little influence."""
    rates = HitRates()
    for _ in range(5 * MAX_TRIALS):
        rates.count(chain(1), (0,))
    assert rates.chances()[0][0][0] > 0.99
    for _ in range(2 * MAX_TRIALS):
        rates.count(chain(1), ())
    assert rates.chances()[0][0][0] < 0.15
    assert rates.trials[0, 0, 0] <= MAX_TRIALS
