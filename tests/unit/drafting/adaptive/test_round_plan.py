"""Expected tokens and costs of rounds, against sums over all nodes. Acceptance rates come near the
truth, follow changes and start from earlier answers."""

from __future__ import annotations

import random

import pytest

from draftlens.core.tree import EAGLE_PATHS, EMPTY, ROOT, Topology, chain, cut, from_paths
from draftlens.drafting.adaptive.round_plan import (
    EARLIER_WEIGHT,
    MAX_DEPTH,
    MAX_NODES,
    PLAIN,
    PRIORS,
    TREES,
    AcceptanceRates,
    Rate,
    RoundPlan,
    level_sizes,
    level_widths,
    likeliest_paths,
)

EAGLE = from_paths(EAGLE_PATHS)
RATES = AcceptanceRates()


def check(num_nodes: int) -> float:
    return 1 + 0.1 * num_nodes


def level(num_nodes: int) -> float:
    return 0.3 + 0.01 * num_nodes


def expected_tokens(tree: Topology) -> float:
    """One token of the target, and each node as often as its path is accepted."""
    ranks = [rate.mean for rate in RATES.ranks]
    chances = {ROOT: 1.0}
    for parent, children in tree.children.items():
        rest = chances[parent]
        for rank, node in enumerate(children):
            chances[node] = rest * ranks[rank]
            rest -= chances[node]
    return sum(chances.values())


@pytest.mark.parametrize("tree", [chain(6), EAGLE, *TREES], ids=len)
def test_each_cut_brings_and_costs_what_its_own_tree_does(tree: Topology) -> None:
    plan = RoundPlan.of(tree, RATES, check, level)
    for depth in range(tree.depth + 1):
        part = cut(tree, depth)
        assert plan.tokens[depth] == pytest.approx(expected_tokens(part))
        assert plan.check_seconds[depth] == pytest.approx(check(len(part)))
        assert plan.draft_seconds[depth] == pytest.approx(sum(map(level, level_widths(part))))
        seconds = plan.draft_seconds[depth] + plan.check_seconds[depth]
        assert plan.rate(depth) == pytest.approx(plan.tokens[depth] / seconds)
        assert plan.loss(depth) == pytest.approx(seconds - check(0))
        assert plan.rate(depth, 0.5) <= plan.rate(depth)


def test_levels_of_a_tree() -> None:
    assert level_widths(EAGLE) == (1, 4, 4, 1, 1)
    assert level_sizes(EAGLE) == (0, 4, 12, 20, 23, 25)
    assert PLAIN.rate(0) == 1


def test_a_doubtful_token_makes_further_levels_worth_less() -> None:
    plan = RoundPlan.of(chain(6), RATES, check, level)
    gains = [plan.gain_below(2, 6, probability, 0.5) for probability in (0.05, 0.3, 0.6, 0.9)]
    assert gains == sorted(gains)
    assert gains[0] < 0 < gains[-1]
    assert plan.gain_below(6, 6, 1.0, 0.5) == 0
    assert plan.gain_below(2, 6, 0.9, 5.0) < gains[-1]


def test_likeliest_paths_are_trees_of_falling_probability() -> None:
    rates = (0.6, 0.2, 0.08)
    paths = likeliest_paths(rates, 30)
    chances = []
    for path in paths:
        chance = 1.0
        for rank in path:
            chance *= rates[rank]
        chances.append(chance)
    assert chances == pytest.approx(sorted(chances, reverse=True))
    assert len(from_paths(paths)) == 30


def test_the_trees_to_choose_from_fit() -> None:
    assert max(map(len, TREES)) == MAX_NODES
    assert TREES[0] == chain(TREES[0].depth)


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
