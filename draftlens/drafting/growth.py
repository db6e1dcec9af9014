"""How a draft tree grows level by level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.core.tree import ROOT, Topology


@dataclass(frozen=True)
class Level:
    """How one level of a tree comes from the one above.

    Args:
        nodes: the level's nodes in the tree.
        parents: for each of them, the index of its parent among the expanded nodes above.
        ranks: for each of them, how many siblings come before it.
        choices: where its draft token is among those of all expanded nodes above, which have
            `most_siblings` each, int64 ``[nodes]``.
        most_siblings: number of nodes in the longest row of siblings.
        expanded: which of the nodes have children themselves, relative to the level.
        inner: the same nodes in the tree, int64 ``[E]``.
        window: bool ``[E, W]``, which of the W nodes expanded so far each expanded node attends to.
        sees_all: whether that is all of them, as along a chain.
    """

    nodes: slice
    parents: list[int]
    ranks: list[int]
    choices: Tensor
    most_siblings: int
    expanded: list[int]
    inner: Tensor
    window: Tensor
    sees_all: bool

    def tokens(self, children: Tensor) -> Tensor:
        """The level's draft tokens ``[B, nodes]``, from the children of the expanded nodes above,
        ``[B, E, most_siblings]``."""
        if len(self.parents) == 1:
            return children[:, 0]
        return children.flatten(1).index_select(1, self.choices.to(children.device))

    def expanded_tokens(self, tokens: Tensor) -> Tensor:
        """The tokens of the expanded nodes ``[B, E]``, from those of the tree ``[B, N]``."""
        first = self.nodes.start + self.expanded[0]
        end = self.nodes.start + self.expanded[-1] + 1
        if end - first == len(self.expanded):  # without a table of indices, as along a chain
            return tokens[:, first:end]
        return tokens.index_select(1, self.inner.to(tokens.device))


@lru_cache
def levels(topology: Topology) -> tuple[Level, ...]:
    """The levels of a tree, from the first one down."""
    plan = []
    parents_above = [ROOT]
    inner = topology.inner[1:]
    visible = trees.ancestors(topology)[1:, 1:]
    for depth in range(1, topology.depth + 1):
        nodes = [node for node, d in enumerate(topology.depths) if d == depth]
        parents = [topology.parents[node] for node in nodes]
        expanded = [node for node in nodes if node in topology.children]
        expanded_so_far = [node for node in inner if topology.depths[node] <= depth]
        window = visible[expanded][:, expanded_so_far]
        places = [parents_above.index(parent) for parent in parents]
        ranks = [
            topology.children[parent].index(node)
            for node, parent in zip(nodes, parents, strict=True)
        ]
        most_siblings = max(ranks) + 1
        level = Level(
            nodes=slice(nodes[0], nodes[-1] + 1),
            parents=places,
            ranks=ranks,
            choices=torch.tensor(places) * most_siblings + torch.tensor(ranks),
            most_siblings=most_siblings,
            expanded=[node - nodes[0] for node in expanded],
            inner=torch.tensor(expanded, dtype=torch.long),
            window=window,
            sees_all=bool(window.all()),
        )
        plan.append(level)
        parents_above = expanded
    return tuple(plan)


@dataclass(frozen=True)
class Nodes:
    """Nodes of a tree that grows, the same in every row of a batch.

    Args:
        batch: the rows.
        topology: the tree.
        tokens: its draft tokens so far, int64 ``[B, N]``.
        nodes: the M nodes, of the same level; `ROOT` allowed.
    """

    batch: Batch
    topology: Topology
    tokens: Tensor
    nodes: list[int]

    def process(self, logits: Tensor) -> Tensor:
        """Scores ``[B, M, V]`` after each row's logits processors, from one model's logits there,
        ``[B, M, V]``."""
        num_rows = len(self.batch)
        topologies = (self.topology,) * num_rows
        return self.batch.process(logits, topologies, self.tokens, [self.nodes] * num_rows)
