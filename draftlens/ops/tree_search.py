"""Search for the draft tree with the highest expected number of tokens per second.

The search needs the chances that draft tokens are correct and the times of drafting and verifying.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from draftlens.core.tree import EMPTY, ROOT, Topology, from_paths

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
    draft_seconds: float,
    max_nodes: int,
) -> TreePlan:
    """The tree with the highest expected tokens per second.

    See :func:`tokens_per_second`. The empty tree is one of the candidates.

    Args:
        chances: their length bounds the depth.
        verify_seconds: maps N to the seconds of a target forward over the last token and N draft
            tokens.
        draft_seconds: seconds of one draft forward.
        max_nodes: number of nodes of the largest tree.
    """
    best_paths: list[Path] = []
    best_rate = 1 / verify_seconds(0)
    for max_depth in range(1, len(chances[0]) + 1):
        nodes = likeliest_paths(chances, max_nodes, max_depth)
        rates = _rates(nodes, verify_seconds, draft_seconds)
        for num_nodes, rate in enumerate(rates, 1):
            if rate > best_rate:
                best_paths = [node.path for node in nodes[:num_nodes]]
                best_rate = rate
    topology = from_paths(best_paths) if best_paths else EMPTY
    return TreePlan(topology, best_rate)


def tokens_per_second(
    topology: Topology,
    chances: Chances,
    verify_seconds: Callable[[int], float],
    draft_seconds: float,
) -> float:
    """Expected tokens per second of rounds with a given tree: eq. 3 of SpecVLM for trees.

    A round with N nodes and depth D is expected to emit 1 + the sum of the chances of all nodes
    (the bonus token included) and takes ``verify_seconds(N) + D * draft_seconds``.
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
    seconds = verify_seconds(len(topology)) + topology.depth * draft_seconds
    return sum(chance.values()) / seconds


def _rates(
    nodes: Sequence[RankedPath], verify_seconds: Callable[[int], float], draft_seconds: float
) -> Iterator[float]:
    """Expected tokens per second of the trees of the first node, the first two nodes, and so on."""
    expected_tokens = 1.0
    depth = 0
    for num_nodes, node in enumerate(nodes, 1):
        expected_tokens += node.chance
        depth = max(depth, len(node.path))
        yield expected_tokens / (verify_seconds(num_nodes) + depth * draft_seconds)


def _chances_after(chances: Chances, prefix: Path) -> Sequence[float]:
    """Chances by rank of the draft tokens that follow a path."""
    after_first_choice = not prefix or prefix[-1] == 0
    branch = 0 if after_first_choice else 1
    return chances[branch][len(prefix)]
