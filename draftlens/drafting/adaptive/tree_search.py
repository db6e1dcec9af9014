"""Search for the draft tree with the highest expected number of tokens per second.

The search needs the chances that draft tokens are correct and the times of drafting and verifying.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from draftlens.core.tree import EMPTY, ROOT, Topology, from_paths

SEARCHED = 2
"""Nodes among which a tree of limited depth is searched, relative to the size of the tree."""

NARROW = (1, 2, 4)
"""Nodes with children in each level of the narrow trees that are searched."""

WIDTH_MATTERS = 1.2
"""Narrow trees are searched if the widest level costs this many times what one node costs."""

Path = tuple[int, ...]
"""A node of a tree: the rank of each draft token from the root to the node."""

Chances = Sequence[Sequence[Sequence[float]]]
"""Chances that draft tokens are correct.

``chances[b][d][r]`` is the chance that the draft token of rank r at depth d + 1 is correct, given
that all tokens before it are. The branch b is 0 where the token before was the draft's first choice
or there is none, and 1 where it was another choice. The chance must not rise with the rank: then a
node is never more likely than a prefix of its path or a sibling of a better rank.
"""


class RankedPath(NamedTuple):
    """A node and the chance that all draft tokens of its path are correct."""

    chance: float
    path: Path


class TreePlan(NamedTuple):
    """A tree and the tokens per second that it is expected to give."""

    topology: Topology
    tokens_per_second: float


def likeliest_paths(
    chances: Chances, max_nodes: int, max_depth: int | None = None
) -> list[RankedPath]:
    """The most likely nodes of the infinite tree, most likely first.

    Args:
        chances: their length bounds the depth.
        max_nodes: number of nodes to return; fewer are returned if there are no more.
        max_depth: length of the longest path; None for the length of `chances`.
    """
    if max_depth is None:
        max_depth = len(chances[0])
    nodes: list[RankedPath] = []
    heap: list[tuple[float, Path]] = []  # (negative chance, path): the most likely comes out first
    if max_depth and chances[0][0]:
        heap.append((-chances[0][0][0], (0,)))
    while heap and len(nodes) < max_nodes:
        value, path = heapq.heappop(heap)
        nodes.append(RankedPath(-value, path))
        prefix = path[:-1]
        rank = path[-1]
        row = _chances_after(chances, prefix)
        if rank + 1 < len(row) and row[rank] > 0:
            heapq.heappush(heap, (value * row[rank + 1] / row[rank], (*prefix, rank + 1)))
        if len(path) < max_depth:
            heapq.heappush(heap, (value * _chances_after(chances, path)[0], (*path, 0)))
    return nodes


def best_tree(
    chances: Chances,
    verify_seconds: Callable[[int], float],
    level_seconds: Callable[[int], float],
    max_nodes: int,
) -> TreePlan:
    """The tree with the highest expected tokens per second.

    See :func:`tokens_per_second`. The empty tree is one of the candidates. The others consist of
    the likeliest nodes within a depth and a width, so that a tree of other nodes may be a little
    better.

    Args:
        chances: their length bounds the depth.
        verify_seconds: maps N to the seconds of a target forward over the last token and N draft
            tokens.
        level_seconds: maps E to the seconds of a draft forward over E nodes of one level.
        max_nodes: number of nodes of the largest tree.
    """
    check = [verify_seconds(count) for count in range(max_nodes + 1)]
    level = [0.0, *map(level_seconds, range(1, max_nodes + 1))]
    likeliest = likeliest_paths(chances, SEARCHED * max_nodes)
    best_paths: list[Path] = []
    best_rate = 1 / check[0]
    for nodes in _candidates(likeliest, len(chances[0]), level):
        nodes = nodes[:max_nodes]
        for num_nodes, rate in enumerate(_rates(nodes, check, level), 1):
            if rate > best_rate:
                best_paths = [node.path for node in nodes[:num_nodes]]
                best_rate = rate
    topology = from_paths(best_paths) if best_paths else EMPTY
    return TreePlan(topology, best_rate)


def _candidates(
    likeliest: Sequence[RankedPath], depth: int, level: Sequence[float]
) -> Iterator[list[RankedPath]]:
    """The likeliest nodes of trees of every depth and, where width costs something, of trees with
    few nodes with children in each level."""
    families = [likeliest]
    if len(level) > 1 and level[-1] > WIDTH_MATTERS * level[1]:
        families += [_narrow(likeliest, width) for width in NARROW]
    for nodes in families:
        for max_depth in range(1, depth + 1):
            yield [node for node in nodes if len(node.path) <= max_depth]


def _narrow(nodes: Sequence[RankedPath], width: int) -> list[RankedPath]:
    """The nodes of the tree in which at most `width` nodes of each level have children."""
    kept: list[RankedPath] = []
    paths: set[Path] = {()}
    parents: set[Path] = set()
    counts: Counter[int] = Counter()
    for node in nodes:
        parent = node.path[:-1]
        if parent not in paths:
            continue
        if parent not in parents:
            if counts[len(parent)] == width:
                continue
            counts[len(parent)] += 1
            parents.add(parent)
        paths.add(node.path)
        kept.append(node)
    return kept


def tokens_per_second(
    topology: Topology,
    chances: Chances,
    verify_seconds: Callable[[int], float],
    level_seconds: Callable[[int], float],
) -> float:
    """Expected tokens per second of rounds with a given tree: eq. 3 of SpecVLM for trees.

    A round with N nodes is expected to emit 1 + the sum of the chances of all nodes (the bonus
    token included). It takes ``verify_seconds(N)`` and, for every level that has children below it,
    ``level_seconds(E)`` for its E nodes with children; the root is the first of these levels. The
    chances of the last depth stand for all below it.
    """
    chance = {ROOT: 1.0}
    paths: dict[int, Path] = {ROOT: ()}
    # Children are listed level by level, so that a parent comes before its children.
    for parent, children in topology.children.items():
        prefix = paths[parent]
        row = _chances_after(chances, prefix)
        for rank, node in enumerate(children):
            chance[node] = chance[parent] * row[rank]
            paths[node] = (*prefix, rank)
    drafting = sum(level_seconds(width) for width in level_widths(topology))
    return sum(chance.values()) / (verify_seconds(len(topology)) + drafting)


@lru_cache
def level_widths(topology: Topology) -> tuple[int, ...]:
    """Nodes with children by level, the root's level first: the widths of the draft's forwards."""
    counts = Counter(0 if node == ROOT else topology.depths[node] for node in topology.inner)
    return tuple(counts[depth] for depth in range(topology.depth))


def _rates(
    nodes: Sequence[RankedPath], check: Sequence[float], level: Sequence[float]
) -> Iterator[float]:
    """Expected tokens per second of the trees of the first node, the first two nodes, and so on.

    Args:
        nodes: the most likely first, parents before their children.
        check: seconds of a verification by number of draft tokens.
        level: seconds of a draft forward by number of nodes.
    """
    expected_tokens = 1.0
    drafting = 0.0
    widths = [0] * len(check)
    for num_nodes, (chance, path) in enumerate(nodes, 1):
        expected_tokens += chance
        if path[-1] == 0:  # the first child of its parent, which the draft now forwards
            depth = len(path) - 1
            width = widths[depth] + 1
            widths[depth] = width
            drafting += level[width] - level[width - 1]
        yield expected_tokens / (check[num_nodes] + drafting)


def _chances_after(chances: Chances, prefix: Path) -> Sequence[float]:
    """Chances by rank of the draft tokens that follow a path."""
    after_first_choice = not prefix or prefix[-1] == 0
    branch = 0 if after_first_choice else 1
    table = chances[branch]
    return table[min(len(prefix), len(table) - 1)]
