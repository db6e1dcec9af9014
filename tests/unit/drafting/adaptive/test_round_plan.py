"""Expected tokens and costs of rounds, against sums over all nodes."""

from __future__ import annotations

import pytest

from draftlens.core.tree import EAGLE_PATHS, ROOT, Topology, chain, cut, from_paths
from draftlens.drafting.adaptive.round_plan import (
    MAX_NODES,
    PLAIN,
    TREES,
    AcceptanceRates,
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
