"""Candidates merged into one tree (HSD, equation 6 and figure 2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from draftlens.core.tree import EMPTY, ROOT, Topology


@dataclass(frozen=True)
class PrefixTree:
    """Token sequences merged by their common prefixes."""

    topology: Topology
    tokens: tuple[int, ...]  # the id of each node
    origins: tuple[int, ...]  # index of the first candidate through each node

    def __len__(self) -> int:
        return len(self.tokens)

    def path(self, tokens: Iterable[int]) -> list[int]:
        """The nodes along tokens from the root on, as far as they are in the tree.

        Example:

            >>> merge([[5, 6, 7], [5, 8]], max_nodes=10).path([5, 8, 9])
            [0, 2]
        """
        node = ROOT
        nodes: list[int] = []
        for token in tokens:
            children = self.topology.children.get(node, ())
            right = [child for child in children if self.tokens[child] == token]
            if not right:
                break
            node = right[0]
            nodes.append(node)
        return nodes

    def kept(self, nodes: Collection[int]) -> PrefixTree:
        """The tree of some of the nodes; the parent of each is among them."""
        if len(nodes) == len(self):
            return self
        order = sorted(nodes)
        new_index = {node: index for index, node in enumerate(order)}
        new_index[ROOT] = ROOT
        parents = tuple(new_index[self.topology.parents[node]] for node in order)
        tokens = tuple(self.tokens[node] for node in order)
        return PrefixTree(Topology(parents), tokens, tuple(self.origins[node] for node in order))


NO_CANDIDATES = PrefixTree(EMPTY, (), ())


def merge(
    candidates: Iterable[Sequence[int]], max_nodes: int, max_depth: int | None = None
) -> PrefixTree:
    """Merge candidates into a prefix tree.

    Nodes are in level order, siblings in the order of the candidates in which they first occur. If
    there are more than `max_nodes`, earlier candidates come first and the last one is cut.

    Example:

        >>> tree = merge([[5, 6, 7], [5, 8], [9]], max_nodes=10)
        >>> tree.tokens, tree.topology.parents
        ((5, 9, 6, 8, 7), (-1, -1, 0, 0, 2))
    """
    trie = _Trie(max_nodes)
    for index, candidate in enumerate(candidates):
        trie.insert(candidate[:max_depth], index)
    return trie.in_level_order()


class _Trie:
    """A tree that grows candidate by candidate; its nodes are in the order of insertion."""

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.tokens: list[int] = []
        self.origins: list[int] = []
        self.children: dict[int, dict[int, int]] = {ROOT: {}}

    def insert(self, candidate: Sequence[int], origin: int) -> None:
        node = ROOT
        for token in candidate:
            child = self.children[node].get(token)
            if child is None:
                if len(self.tokens) >= self.max_nodes:
                    return
                child = len(self.tokens)
                self.children[node][token] = child
                self.children[child] = {}
                self.tokens.append(token)
                self.origins.append(origin)
            node = child

    def in_level_order(self) -> PrefixTree:
        order = list(self.children[ROOT].values())
        parents = [ROOT] * len(order)
        for index, node in enumerate(order):  # grows while it is read
            below = list(self.children[node].values())
            order += below
            parents += [index] * len(below)
        if not order:
            return NO_CANDIDATES
        tokens = tuple(self.tokens[node] for node in order)
        return PrefixTree(
            Topology(tuple(parents)), tokens, tuple(self.origins[node] for node in order)
        )
