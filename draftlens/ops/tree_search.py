"""The draft tree that pays most: from how often guesses are right and what checking them costs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from draftlens.ops.tree import from_paths
from draftlens.types import EMPTY, Topology

Path = tuple[int, ...]


def likeliest_paths(chances: Sequence[Sequence[float]], most: int) -> list[tuple[float, Path]]:
    """The `most` likeliest nodes of the infinite tree, likeliest first, each with the chance that all of it is right.

    Args:
        chances: `chances[d][r]` is the chance that the guess of rank r is right at depth d + 1, if all before it is.
            It may not rise with the rank: then every prefix and better sibling of a chosen node is chosen too.
        most: nodes wanted.
    """
    found: list[tuple[float, Path]] = []
    heap: list[tuple[float, Path]] = [(-chances[0][0], (0,))] if chances and chances[0] else []
    while heap and len(found) < most:
        value, path = heapq.heappop(heap)
        found.append((-value, path))
        depth, rank = len(path), path[-1]
        row = chances[depth - 1]
        if rank + 1 < len(row) and row[rank] > 0:
            heapq.heappush(heap, (value * row[rank + 1] / row[rank], (*path[:-1], rank + 1)))
        if depth < len(chances):
            heapq.heappush(heap, (value * chances[depth][0], (*path, 0)))
    return found


def best_tree(
    chances: Sequence[Sequence[float]],
    verify_seconds: Callable[[int], float],
    draft_seconds: float,
    max_nodes: int,
) -> tuple[Topology, float]:
    """The tree with most expected tokens a second, and that rate.

    A round of a tree with N nodes and depth D emits 1 + sum of its nodes' chances tokens (the bonus token included)
    and takes `verify_seconds(N) + D * draft_seconds`: eq. 3 of SpecVLM for trees. The empty tree competes too.

    Args:
        chances: as for :func:`likeliest_paths`; its length bounds the depth.
        verify_seconds: seconds of a target forward over the last token and N guesses.
        draft_seconds: seconds of one draft forward.
        max_nodes: largest tree.
    """
    best, rate = EMPTY, 1 / verify_seconds(0)
    for depth in range(1, len(chances) + 1):
        expected = 1.0
        paths: list[Path] = []
        for value, path in likeliest_paths(chances[:depth], max_nodes):
            expected, paths = expected + value, [*paths, path]
            reached = max(map(len, paths))
            faster = expected / (verify_seconds(len(paths)) + reached * draft_seconds)
            if faster > rate:
                best, rate = from_paths(paths), faster
    return best, rate
