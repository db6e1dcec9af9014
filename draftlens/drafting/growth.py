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
    """How one level of a tree comes from the one above."""

    nodes: slice  # the level's nodes in the tree
    parents: list[int]  # index of each node's parent among the expanded nodes above
    ranks: list[int]  # how many siblings come before each node
    # index of each node's token among the `most_siblings` children of every expanded node above,
    # int64 ``[nodes]``
    choices: Tensor
    most_siblings: int  # length of the longest row of siblings
    expanded: list[int]  # nodes with children, relative to the level
    inner: Tensor  # the same nodes in the tree, int64 ``[E]``
    # bool ``[E, W]``, which of the W nodes expanded so far each expanded node attends to
    window: Tensor
    sees_all: bool  # whether that is all of them, as along a chain

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
    """Nodes of a tree that grows, the same in every row of a batch."""

    batch: Batch
    topology: Topology
    tokens: Tensor  # draft tokens so far, int64 ``[B, N]``
    nodes: list[int]  # M nodes of the same level; `ROOT` allowed

    def process(self, logits: Tensor) -> Tensor:
        """Scores ``[B, M, V]`` after each row's logits processors, from one model's logits there,
        ``[B, M, V]``."""
        num_rows = len(self.batch)
        topologies = (self.topology,) * num_rows
        return self.batch.process(logits, topologies, self.tokens, [self.nodes] * num_rows)
