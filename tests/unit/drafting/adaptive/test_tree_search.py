"""The best tree, compared with all possible trees."""

from __future__ import annotations

import random
from itertools import product

import pytest

from draftlens.core.tree import EMPTY, Topology, chain, from_paths
from draftlens.drafting.adaptive.tree_search import (
    best_tree,
    level_widths,
    likeliest_paths,
    tokens_per_second,
)

Path = tuple[int, ...]
Tables = list[list[list[float]]]


def chance_of(chances: Tables, path: Path) -> float:
    value = 1.0
    for depth, rank in enumerate(path):
        after_other = depth > 0 and path[depth - 1] > 0
        value *= chances[int(after_other)][depth][rank]
    return value


def random_chances(seed: int, depth: int, ranks: int) -> Tables:
    """Different chances after a first choice and after another choice."""
    rng = random.Random(seed)
    tables: Tables = []
    for _ in range(2):
        rows = []
        for _ in range(depth):
            cuts = sorted((rng.random() for _ in range(ranks)), reverse=True)
            rows.append([cut / sum(cuts) * 0.95 for cut in cuts])
        tables.append(rows)
    return tables


def all_paths(depth: int, ranks: int) -> list[Path]:
    return [path for d in range(1, depth + 1) for path in product(range(ranks), repeat=d)]


@pytest.mark.parametrize("seed", range(6))
def test_likeliest_paths_are_the_likeliest_of_all(seed: int) -> None:
    chances = random_chances(seed, 4, 3)
    every = sorted((chance_of(chances, path) for path in all_paths(4, 3)), reverse=True)
    for max_nodes in (0, 1, 7, 40, len(every), 500):
        results = likeliest_paths(chances, max_nodes)
        assert [value for value, _ in results] == pytest.approx(every[:max_nodes])
        assert all(value == pytest.approx(chance_of(chances, path)) for value, path in results)
        from_paths(
            [path for _, path in results]
        ) if results else None  # refuses a missing parent or sibling


def closed_sets(paths: list[Path], max_nodes: int) -> list[frozenset[Path]]:
    """All trees of at most `max_nodes` nodes."""
    trees = {frozenset[Path]()}
    for _ in range(max_nodes):
        grown = set(trees)
        for tree in trees:
            for path in paths:
                needed = {path[:-1], (*path[:-1], path[-1] - 1)}
                if path not in tree and all(n == () or n[-1] < 0 or n in tree for n in needed):
                    grown.add(tree | {path})
        trees = grown
    return list(trees)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("draft", [0.01, 0.2, 1.5])
def test_best_tree_beats_every_other_tree(seed: int, draft: float) -> None:
    chances = random_chances(seed, 3, 2)

    def verify(nodes: int) -> float:
        return 1 + 0.1 * nodes

    def level(nodes: int) -> float:
        return draft

    def rate(tree: frozenset[Path]) -> float:
        expected = 1 + sum(chance_of(chances, path) for path in tree)
        return expected / (verify(len(tree)) + max(map(len, tree), default=0) * draft)

    topology, best_rate = best_tree(chances, verify, level, max_nodes=5)
    assert best_rate == pytest.approx(max(map(rate, closed_sets(all_paths(3, 2), 5))))
    assert len(topology) <= 5
    assert tokens_per_second(topology, chances, verify, level) == pytest.approx(best_rate)


@pytest.mark.parametrize("seed", range(5))
def test_a_level_costs_what_its_width_costs(seed: int) -> None:
    """The best tree is nearly the best of all; its rate is that of the slow twin."""
    chances = random_chances(seed, 3, 2)

    def level(nodes: int) -> float:
        return 0.1 + 0.2 * nodes

    def rate(tree: frozenset[Path]) -> float:
        expected = 1 + sum(chance_of(chances, path) for path in tree)
        inner = {path[:-1] for path in tree}
        widths = [sum(len(path) == depth for path in inner) for depth in range(3)]
        return expected / (1 + sum(level(width) for width in widths if width))

    best = best_tree(chances, lambda nodes: 1.0, level, max_nodes=5)
    trees = closed_sets(all_paths(3, 2), 5)
    rates = {_topology(tree): rate(tree) for tree in trees}
    assert rates[best.topology] == pytest.approx(best.tokens_per_second)
    assert best.tokens_per_second > 0.97 * max(rates.values())


def _topology(tree: frozenset[Path]) -> Topology:
    return from_paths(sorted(tree)) if tree else EMPTY


def test_widths_of_levels() -> None:
    """The root is a level of one node; leaves are never forwarded by the draft."""
    tree = from_paths([[0], [1], [2], [0, 0], [1, 0], [0, 0, 0]])
    assert level_widths(tree) == (1, 2, 1)
    assert level_widths(chain(3)) == (1, 1, 1)
    assert level_widths(EMPTY) == ()


def test_no_tree_where_drafting_does_not_pay() -> None:
    assert best_tree(2 * [[[0.1]]], lambda nodes: 1 + nodes, lambda nodes: 0.5, 10) == (EMPTY, 1.0)


def test_checking_for_free_takes_all_nodes() -> None:
    chances = 2 * [[[0.6, 0.2], [0.6, 0.2]]]
    topology, _ = best_tree(chances, lambda nodes: 1.0, lambda nodes: 0.0, 6)
    assert len(topology) == 6
