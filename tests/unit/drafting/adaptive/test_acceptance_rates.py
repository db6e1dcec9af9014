"""Acceptance rates come near the truth, follow changes and start from earlier answers."""

from __future__ import annotations

import random

import pytest

from draftlens.core.tree import EMPTY, chain, from_paths
from draftlens.drafting.adaptive.round_plan import (
    EARLIER_WEIGHT,
    MAX_DEPTH,
    PRIORS,
    AcceptanceRates,
    Rate,
)

TREE = from_paths([[0], [1], [2], [0, 0], [1, 0], [1, 1]])


def test_a_rate_is_a_mean_of_what_it_remembers() -> None:
    rate = Rate(0.5, 0.0, memory=10)
    rate.add(1.0)
    rate.add(0.0)
    assert rate.mean == pytest.approx(0.5)
    for _ in range(50):
        rate.add(1.0)
    assert rate.mean > 0.99
    assert rate.weight == 10


def test_children_of_accepted_nodes_count_by_rank() -> None:
    """Ranks below the first accepted one say nothing."""
    rates = AcceptanceRates()
    rates.count(TREE, (1, 5))
    assert rates.trials == 2
    means = [rate.mean for rate in rates.ranks]
    assert means[0] < PRIORS[0]
    assert means[1] > PRIORS[1]
    assert means[2:] == list(PRIORS[2:])


def test_an_empty_tree_counts_nothing() -> None:
    rates = AcceptanceRates()
    rates.count(EMPTY, ())
    assert rates.trials == 0
    assert [rate.mean for rate in rates.ranks] == list(PRIORS)


@pytest.mark.parametrize("truth", [0.0, 0.3, 0.9])
def test_rates_come_near_the_truth(truth: float) -> None:
    rng = random.Random(1)
    rates = AcceptanceRates()
    for _ in range(200):
        rates.add_first_choice(rng.random() < truth, rng.randrange(12))
    assert rates.ranks[0].mean == pytest.approx(truth, abs=0.15)
    assert len(rates.first_choices) == MAX_DEPTH
    assert all(0 <= rate <= 1 for rate in rates.first_choices)


def test_depths_have_rates_of_their_own() -> None:
    rates = AcceptanceRates()
    for _ in range(100):
        rates.count(chain(2), (0,))
    first, second, *_ = rates.first_choices
    assert first > 0.8
    assert second < 0.3


def test_an_answer_starts_from_an_earlier_one_and_leaves_it_as_it_is() -> None:
    earlier = AcceptanceRates()
    for _ in range(100):
        earlier.count(chain(1), ())
    rates = AcceptanceRates(earlier)
    assert rates.ranks[0].mean == earlier.overall.mean < 0.1
    assert rates.trials == EARLIER_WEIGHT
    for _ in range(20):
        rates.count(chain(1), (0,))
    assert rates.ranks[0].mean > 0.6
    assert earlier.ranks[0].mean < 0.1


def test_a_part_of_an_answer_that_is_hard_does_not_decide_the_start_of_the_next() -> None:
    earlier = AcceptanceRates()
    for accepted in [True] * 100 + [False] * 100:
        earlier.add_first_choice(accepted)
    assert earlier.ranks[0].mean < 0.1
    assert AcceptanceRates(earlier).ranks[0].mean == pytest.approx(0.5, abs=0.1)


def test_caution_ends_with_the_number_of_trials() -> None:
    values = []
    rates = AcceptanceRates()
    for number in range(40):
        values.append(rates.caution)
        rates.add_first_choice(number % 4 != 0)
    assert values[0] < 0.2
    assert 0.75 < values[-1] < 1


def test_hope_ends_with_the_number_of_trials() -> None:
    values = []
    rates = AcceptanceRates()
    for _ in range(40):
        values.append(rates.hope * rates.ranks[0].mean)
        rates.add_first_choice(False)
    assert values[0] == pytest.approx(1.0)
    assert values[-1] < 0.2
