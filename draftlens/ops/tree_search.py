"""The draft tree that pays most: from how often guesses are right and what checking them costs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from draftlens.core.tree import EMPTY, ROOT, Topology, from_paths

Path = tuple[int, ...]
Chances = Sequence[Sequence[Sequence[float]]]
"""How often guesses are right: ``chances[c][d][r]`` is the chance that the guess of rank r is right
at depth d + 1, if all before it is; c is 0 where the one before was the draft's first choice (or
there is none), 1 where it was another. It may not rise with the rank: then every prefix and better
sibling of a likely node is likelier than the node."""


def likeliest_paths(
    chances: Chances, most: int, depth: int | None = None
) -> list[tuple[float, Path]]:
    """The likeliest nodes of the infinite tree, likeliest first, each with the chance that all of
    it is right.

    Args:
        chances: their length bounds the depth.
        most: nodes wanted.
        depth: longest path wanted.
    """
    found: list[tuple[float, Path]] = []
    limit = len(chances[0]) if depth is None else depth
    heap: list[tuple[float, Path]] = [(-chances[0][0][0], (0,))] if limit and chances[0][0] else []
    while heap and len(found) < most:
        value, path = heapq.heappop(heap)
        found.append((-value, path))
        rank, row = path[-1], _row(chances, path[:-1])
        if rank + 1 < len(row) and row[rank] > 0:
            heapq.heappush(heap, (value * row[rank + 1] / row[rank], (*path[:-1], rank + 1)))
        if len(path) < limit:
            heapq.heappush(heap, (value * _row(chances, path)[0], (*path, 0)))
    return found


def _row(chances: Chances, before: Path) -> Sequence[float]:
    """Chances by rank behind a path."""
    return chances[before[-1:] > (0,)][len(before)]


def best_tree(
    chances: Chances,
    verify_seconds: Callable[[int], float],
    draft_seconds: float,
    max_nodes: int,
) -> tuple[Topology, float]:
    """The tree with most expected tokens a second, and that rate.

    See :func:`tokens_a_second`. The empty tree competes too.

    Args:
        chances: their length bounds the depth.
        verify_seconds: seconds of a target forward over the last token and N guesses.
        draft_seconds: seconds of one draft forward.
        max_nodes: largest tree.
    """
    best, rate = list[Path](), 1 / verify_seconds(0)
    for depth in range(1, len(chances[0]) + 1):
        expected, reached = 1.0, 0
        nodes = likeliest_paths(chances, max_nodes, depth)
        for count, (value, path) in enumerate(nodes, 1):
            expected, reached = expected + value, max(reached, len(path))
            faster = expected / (verify_seconds(count) + reached * draft_seconds)
            if faster > rate:
                best, rate = [path for _, path in nodes[:count]], faster
    return from_paths(best) if best else EMPTY, rate


def tokens_a_second(
    topology: Topology,
    chances: Chances,
    verify_seconds: Callable[[int], float],
    draft_seconds: float,
) -> float:
    """What rounds of a tree should emit a second: eq. 3 of SpecVLM for trees.

    A round of N nodes and depth D emits 1 + the sum of its nodes' chances tokens (the bonus token
    included) and takes `verify_seconds(N) + D * draft_seconds`.
    """
    chance, paths = {ROOT: 1.0}, dict[int, Path]({ROOT: ()})
    for (
        parent,
        nodes,
    ) in topology.children.items():  # level by level, so a parent comes before its children
        row = _row(chances, paths[parent])
        for rank, node in enumerate(nodes):
            chance[node], paths[node] = chance[parent] * row[rank], (*paths[parent], rank)
    return sum(chance.values()) / (verify_seconds(len(topology)) + topology.depth * draft_seconds)
