"""Candidates merged into one tree, against a twin that lists all prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from draftlens.core.tree import ROOT, Topology
from draftlens.methods.lookup.candidates import NO_CANDIDATES, PrefixTree, merge

Prefix = tuple[int, ...]

repeatable = settings(derandomize=True, deadline=None, database=None)
candidates = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8)


def slow_merge(sequences: Sequence[Sequence[int]], most: int, depth: int) -> PrefixTree:
    """Each node is the prefix that leads to it."""
    first_in: dict[Prefix, int] = {}
    for index, sequence in enumerate(sequences):
        for length in range(1, min(len(sequence), depth) + 1):
            prefix = tuple(sequence[:length])
            if prefix not in first_in and len(first_in) < most:
                first_in[prefix] = index
    age = {prefix: number for number, prefix in enumerate(first_in)}

    def place(prefix: Prefix) -> tuple[int, list[int]]:
        return len(prefix), [age[prefix[: n + 1]] for n in range(len(prefix))]

    nodes = sorted(first_in, key=place)
    parents = [nodes.index(node[:-1]) if node[:-1] else ROOT for node in nodes]
    return PrefixTree(
        Topology(tuple(parents)),
        tuple(node[-1] for node in nodes),
        tuple(first_in[node] for node in nodes),
    )


@repeatable
@given(candidates, st.integers(0, 12), st.integers(0, 6))
def test_merge_equals_the_slow_twin(
    sequences: list[list[int]], max_nodes: int, max_depth: int
) -> None:
    assert merge(sequences, max_nodes, max_depth) == slow_merge(sequences, max_nodes, max_depth)


@repeatable
@given(candidates)
def test_every_candidate_is_a_path_and_every_node_is_part_of_one(
    sequences: list[list[int]],
) -> None:
    tree = merge(sequences, max_nodes=1000)
    prefixes = {tuple(row[: n + 1]) for row in sequences for n in range(len(row))}
    assert {prefix_of(tree, node) for node in range(len(tree))} == prefixes
    assert len(tree) == len(prefixes)
    assert list(tree.topology.depths) == sorted(tree.topology.depths)


def prefix_of(tree: PrefixTree, node: int) -> Prefix:
    """The tokens that lead to a node."""
    if node == ROOT:
        return ()
    return (*prefix_of(tree, tree.topology.parents[node]), tree.tokens[node])


@repeatable
@given(candidates, st.data())
def test_the_tree_of_some_nodes(sequences: list[list[int]], choices: st.DataObject) -> None:
    tree = merge(sequences, max_nodes=1000)
    kept: set[int] = set()
    for node, parent in enumerate(tree.topology.parents):
        if (parent == ROOT or parent in kept) and choices.draw(st.booleans()):
            kept.add(node)
    smaller = tree.kept(kept)
    assert [prefix_of(smaller, node) for node in range(len(smaller))] == [
        prefix_of(tree, node) for node in sorted(kept)
    ]
    assert smaller.origins == tuple(tree.origins[node] for node in sorted(kept))


def test_figure_2_of_the_paper() -> None:
    """Three candidates of which two begin alike."""
    tree = merge([[1, 2, 3], [1, 2, 4], [5, 6]], max_nodes=20)
    assert tree.tokens == (1, 5, 2, 6, 3, 4)
    assert tree.topology.parents == (ROOT, ROOT, 0, 1, 2, 2)


def test_nothing_is_the_empty_tree() -> None:
    assert (
        merge([], 10) == merge([[]], 10) == merge([[1]], 0) == merge([[1]], 5, 0) == NO_CANDIDATES
    )
