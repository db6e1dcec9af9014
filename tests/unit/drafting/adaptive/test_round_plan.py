"""Plans of rounds, compared with trees that are evaluated one by one."""

from __future__ import annotations

import random
from math import inf, prod

import pytest

from draftlens.core.tree import EAGLE_PATHS, EMPTY, ROOT, Topology, chain, cut, from_paths, path_to
from draftlens.drafting.adaptive.round_plan import PLAIN, Growth, RoundPlan, Seconds
from draftlens.drafting.adaptive.tree_search import level_widths, tokens_per_second

Tables = list[list[list[float]]]

TREES = {
    "empty": EMPTY,
    "chain": chain(7),
    "eagle": from_paths(EAGLE_PATHS),
    "odd": from_paths([[0], [1], [2], [1, 0], [1, 1], [2, 0], [1, 1, 0], [1, 1, 0, 0]]),
    "wide": from_paths([[0], [1], [2], [3]]),
}
all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
seeds = pytest.mark.parametrize("seed", range(6))


def random_chances(seed: int, depth: int = 3) -> Tables:
    """By branch, depth and rank; the trees are deeper than the tables."""
    rng = random.Random(seed)
    cuts = [[[rng.random() ** 4 for _ in range(4)] for _ in range(depth)] for _ in range(2)]
    return [
        [sorted((0.97 * cut / sum(row) for cut in row), reverse=True) for row in table]
        for table in cuts
    ]


def random_costs(seed: int) -> tuple[Seconds, Seconds]:
    """Of a verification by number of guesses, and of a draft forward by number of nodes."""
    rng = random.Random(seed)
    slope, step, base, width = (
        rng.uniform(*span) for span in ((0, 0.1), (0, 0.4), (0, 0.2), (0, 0.05))
    )
    return (
        lambda nodes: 1 + slope * nodes + step * (nodes >= 4),
        lambda nodes: base + width * nodes,
    )


def random_plan(seed: int, tree: Topology) -> RoundPlan:
    return RoundPlan.of(tree, random_chances(seed), *random_costs(seed))


def slow_chance(tree: Topology, node: int, chances: Tables) -> float:
    """The chance that all guesses down to a node are correct, along its path."""
    factors = []
    branch, parent = 0, ROOT
    for depth, step in enumerate(path_to(tree, node)):
        rank = tree.children[parent].index(step)
        factors.append(chances[branch][min(depth, len(chances[branch]) - 1)][rank])
        branch, parent = min(rank, 1), step
    return prod(factors)


@all_trees
@seeds
def test_levels_bring_the_chances_of_their_nodes(tree: Topology, seed: int) -> None:
    chances = random_chances(seed)
    plan = RoundPlan.of(tree, chances, *random_costs(seed))
    expected = [0.0] * (tree.depth + 1)
    for node, depth in enumerate(tree.depths):
        expected[depth] += slow_chance(tree, node, chances)
    assert plan.hits == pytest.approx(expected)
    firsts = [prod(chances[0][min(d, 2)][0] for d in range(n)) for n in range(tree.depth + 1)]
    assert plan.first_chances == pytest.approx(firsts)


@all_trees
@seeds
def test_each_cut_costs_what_its_own_tree_costs(tree: Topology, seed: int) -> None:
    check, level = random_costs(seed)
    plan = random_plan(seed, tree)
    assert len(plan.check_seconds) == len(plan.draft_seconds) == tree.depth + 1
    for depth in range(tree.depth + 1):
        part = cut(tree, depth)
        assert plan.check_seconds[depth] == pytest.approx(check(len(part)))
        assert plan.draft_seconds[depth] == pytest.approx(sum(map(level, level_widths(part))))
    assert plan.plain_seconds == check(0)


@all_trees
@seeds
def test_the_best_cut_beats_every_other_cut(tree: Topology, seed: int) -> None:
    chances = random_chances(seed)
    check, level = random_costs(seed)
    best = RoundPlan.of(tree, chances, check, level).best_cut()
    rates = {
        part: tokens_per_second(part, chances, check, level)
        for part in (cut(tree, depth) for depth in range(tree.depth + 1))
    }
    assert best.tokens_per_second == pytest.approx(max(rates.values()))
    assert rates[best.topology] == pytest.approx(max(rates.values()))


def test_the_seeds_lead_to_cuts_of_several_depths() -> None:
    """So that the tests above compare something."""
    cuts = {
        random_plan(seed, tree).best_cut().topology.depth
        for seed in range(6)
        for tree in TREES.values()
    }
    assert len(cuts) >= 4


@all_trees
@seeds
def test_a_speedup_compares_with_plain_decoding(tree: Topology, seed: int) -> None:
    chances = random_chances(seed)
    check, level = random_costs(seed)
    plan = RoundPlan.of(tree, chances, check, level)
    lower = [[[0.8 * chance for chance in row] for row in table] for table in chances]
    for depth in range(tree.depth + 1):
        part = cut(tree, depth)
        plain = tokens_per_second(EMPTY, chances, check, level)
        rate = tokens_per_second(part, chances, check, level)
        assert plan.speedup(depth) == pytest.approx(rate / plain)
        declined = tokens_per_second(part, lower, check, level)
        assert plan.speedup(depth, decline=0.8) == pytest.approx(declined / plain)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9, 1.0])
@seeds
def test_the_best_speedup_of_a_chain_is_that_of_its_best_cut(seed: int, chance: float) -> None:
    check, level = random_costs(seed)
    plan = random_plan(seed, chain(7))
    known = RoundPlan.of(chain(7), [[[chance]], [[chance]]], check, level)
    expected = max(known.speedup(depth) for depth in range(8))
    assert plan.best_speedup(chance) == pytest.approx(expected)
    assert plan.best_speedup(chance) >= 1


@all_trees
@seeds
def test_a_round_loses_what_it_takes_beyond_a_plain_one(tree: Topology, seed: int) -> None:
    check, level = random_costs(seed)
    plan = random_plan(seed, tree)
    losses = []
    for depth in range(tree.depth + 1):
        part = cut(tree, depth)
        losses.append(sum(map(level, level_widths(part))) + check(len(part)) - check(0))
        assert plan.loss(depth) == pytest.approx(losses[-1])
    for allowance in (-1.0, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 1e9):
        deepest = max((d for d, loss in enumerate(losses) if loss <= allowance), default=0)
        assert plan.affordable_depth(allowance) == deepest


def test_a_plan_for_plain_decoding() -> None:
    assert PLAIN.best_cut() == (EMPTY, 1.0)
    assert PLAIN.affordable_depth(1e9) == 0
    assert PLAIN.loss(0) == 0
    assert PLAIN.best_speedup(1.0) == 1.0
    assert not Growth(PLAIN, 1.0, 0).goes_on()


def slow_growth(plan: RoundPlan, rate: float, limit: int, seen: list[float]) -> tuple[bool, int]:
    """Whether growth goes on after some levels and how many of them are worth verifying, from
    scratch.

    A cut of the tree is worth its expected tokens less those that other rounds would make in the
    time that it still takes.

    Args:
        plan, rate, limit: of the round.
        seen: the draft's chance for each grown level.
    """
    grown = len(seen)

    def hits(depth: int) -> float:
        """Expected tokens of a level, with what was known when it was grown, or is known now."""
        known = min(depth, grown)
        return plan.hits[depth] * prod(seen[:known]) / plan.first_chances[known]

    def value(depth: int) -> float:
        tokens = sum(hits(level) for level in range(1, depth + 1))
        still = max(plan.draft_seconds[depth] - plan.draft_seconds[grown], 0.0)
        return tokens - rate * (plan.check_seconds[depth] + still)

    # What is grown is verified, one level of it at least.
    done = range(1, grown + 1) if grown else range(1)
    best = max(map(value, done))
    deeper = max(map(value, range(grown + 1, limit + 1)), default=-inf)
    return deeper > best, next(depth for depth in done if value(depth) == best)


@all_trees
@pytest.mark.parametrize("rate", [0.2, 1.0, 3.0])
@seeds
def test_growth_equals_a_search_from_scratch(tree: Topology, rate: float, seed: int) -> None:
    rng = random.Random(seed)
    plan = random_plan(seed, tree)
    for _ in range(10):
        limit = rng.randint(0, tree.depth)
        growth = Growth(plan, rate, limit)
        seen: list[float] = []
        assert (growth.goes_on(), growth.best_depth) == slow_growth(plan, rate, limit, seen)
        for _ in range(limit):
            seen.append(rng.choice([0.05, 0.5, 0.9, 1.0]) * rng.uniform(0.9, 1.0))
            growth.grow(seen[-1])
            assert growth.depth == len(seen)
            assert (growth.goes_on(), growth.best_depth) == slow_growth(plan, rate, limit, seen)


def chain_growth(rate: float = 1.0, limit: int = 7) -> Growth:
    """A chain whose guesses are correct with chance 0.8; a check takes 1 second and 0.05 for each
    guess, a draft forward 0.1."""
    plan = RoundPlan.of(
        chain(7), [[[0.8]], [[0.8]]], lambda nodes: 1 + 0.05 * nodes, lambda nodes: 0.1
    )
    return Growth(plan, rate, limit)


def test_growth_goes_on_while_the_draft_is_sure_and_ends_at_the_limit() -> None:
    growth = chain_growth(limit=5)
    for _ in range(4):
        assert growth.goes_on()
        growth.grow(0.95)
    assert growth.goes_on()
    growth.grow(0.95)
    assert not growth.goes_on()
    assert growth.best_depth == 5


def test_growth_ends_below_a_doubtful_token() -> None:
    """Which is verified itself, since a check of one more token costs less than it may bring; a
    hopeless one is not."""
    growth = chain_growth()
    growth.grow(0.9)
    growth.grow(0.9)
    assert growth.goes_on()
    growth.grow(0.1)
    assert not growth.goes_on()
    assert growth.best_depth == 3
    growth = chain_growth()
    growth.grow(0.9)
    growth.grow(0.01)
    assert not growth.goes_on()
    assert growth.best_depth == 1


def test_what_is_drafted_already_costs_nothing_more() -> None:
    """A level is worth verifying though it was not worth drafting."""
    growth = chain_growth()
    growth.grow(0.12)  # drafting and checking takes 0.15
    assert growth.best_depth == 1
    growth.grow(0.9)
    assert growth.best_depth == 2


def test_one_grown_level_is_verified_however_doubtful() -> None:
    growth = chain_growth()
    assert growth.best_depth == 0
    growth.grow(0.0)
    assert growth.best_depth == 1
    assert not growth.goes_on()


def test_faster_other_rounds_end_growth_earlier() -> None:
    depths = []
    for rate in (0.5, 1.0, 2.0, 4.0, 9.0):
        growth = chain_growth(rate)
        while growth.goes_on():
            growth.grow(0.8)
        depths.append(growth.depth)
    assert depths == sorted(depths, reverse=True)
    assert depths[0] == 7
    assert depths[-1] == 0
