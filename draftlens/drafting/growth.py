"""Growing a draft tree level by level out of a model's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.core.proposal import DraftTree
from draftlens.core.tree import ROOT, Topology
from draftlens.decoding.drafter import draw_children


@dataclass(frozen=True)
class Level:
    """How one level of a tree comes from the one above.

    Args:
        nodes: the level's nodes in the tree.
        parents: for each of them, the index of its parent among the expanded nodes of the level
            above.
        ranks: for each of them, how many siblings come before it.
        choices: where its guess is among those of all expanded nodes of the level above, which
            have `most_siblings` each, int64 ``[nodes]``.
        most_siblings: number of nodes in the longest row of siblings.
        expanded: which of them have children themselves, relative to the level.
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


@lru_cache
def levels(topology: Topology) -> tuple[Level, ...]:
    """The plan by which a tree is grown."""
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
        tokens: its guesses so far, int64 ``[B, N]``.
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


class TreeScorer(Protocol):
    """Scores the nodes of a tree that grows: one model, or a mixture of several.

    A mixture keeps the logits of its members apart up to `process`, since processors must bend
    each member's logits before these are mixed.
    """

    def process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """Scores of the guesses at some nodes, ``[B, M, V]``.

        Args:
            logits: there, as `catch_up` or `expand` returned them.
            nodes: these nodes.
        """
        ...

    def catch_up(self, steps: Tensor) -> Tensor:
        """Logits behind each row's last token, ``[B, 1, V]``.

        Args:
            steps: index in its answer of each row's next token, int64 ``[B, 1]``.
        """
        ...

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Logits behind the nodes of a level that have children, ``[B, E, V]``.

        Args:
            tokens: int64 ``[B, E]``.
            steps: index in the answer of these tokens, int64 ``[B, 1]``.
            level: their level.
        """
        ...

    def run_on(self, logits: Tensor, steps: Tensor, count: int) -> Tensor | None:
        """The likeliest chain of guesses in one go, int64 ``[B, count]``, as by one `expand` after
        the other; None, with nothing forwarded, where the guesses need more than that.

        Args:
            logits: behind each row's last token, as `catch_up` returned them.
            steps: index in its answer of each row's next token, int64 ``[B, 1]``.
            count: length of the chain. All its tokens but the last are forwarded.
        """
        ...


class Watch(Protocol):
    """Decides level by level how far a tree grows."""

    def grown(self, confidences: Sequence[float]) -> bool:
        """Whether another level shall be grown below the one that was just grown.

        Args:
            confidences: of each row, the draft's probability of its first choice at the level.
        """
        ...


def grow(
    scorer: TreeScorer,
    topology: Topology,
    batch: Batch,
    logits: Tensor,
    watch: Watch | None = None,
) -> DraftTree:
    """Grow the same non-empty tree for every row, one `expand` per level that has children below,
    or one `run_on` for a whole chain of likeliest tokens.

    Args:
        scorer: the model.
        topology: the tree.
        batch: the rows.
        logits: behind each row's last token, from `TreeScorer.catch_up`, ``[B, 1, V]``.
        watch: may end the growth above the tree's last level.

    Returns:
        The tree as far as it was grown, with probabilities if a row uses rejection sampling.
    """
    device = logits.device
    if watch is None and batch.is_greedy and topology.depth == len(topology):
        run = scorer.run_on(logits, batch.steps(device), topology.depth)
        if run is not None:
            return DraftTree.uniform(topology, run)
    tokens = torch.empty(len(batch), len(topology), dtype=torch.long, device=device)
    first_step = batch.steps(device)
    probs: list[Tensor] = []
    parents = [ROOT]
    for depth, level in enumerate(levels(topology)):
        scores = scorer.process(logits, Nodes(batch, topology, tokens, parents))
        if batch.rejects:
            probs.append(torch.softmax(scores.double(), -1))
        steps = (first_step + depth).expand(-1, scores.shape[1])
        children = draw_children(batch, scores, level.most_siblings, steps)
        tokens[:, level.nodes] = _guesses(children, level)
        if watch is not None:
            confidences = _probabilities(scores[:, 0], children[:, 0, :1])
            if not watch.grown(confidences):
                topology = trees.cut(topology, depth + 1)
                tokens = tokens[:, : len(topology)]
                break
        if level.expanded:
            parents = [level.nodes.start + node for node in level.expanded]
            logits = scorer.expand(_inner(tokens, level), first_step + depth, level)
    return DraftTree.uniform(topology, tokens, torch.cat(probs, 1) if probs else None)


def _guesses(children: Tensor, level: Level) -> Tensor:
    """The guesses at the nodes of a level, ``[B, nodes]``, from those of the expanded nodes above,
    ``[B, E, most_siblings]``."""
    if len(level.parents) == 1:
        return children[:, 0]
    return children.flatten(1).index_select(1, level.choices.to(children.device))


def _inner(tokens: Tensor, level: Level) -> Tensor:
    """The tokens of the expanded nodes of a level, ``[B, E]``: without a table of indices where
    they stand beside each other, as along a chain."""
    first = level.nodes.start + level.expanded[0]
    end = level.nodes.start + level.expanded[-1] + 1
    if end - first == len(level.expanded):
        return tokens[:, first:end]
    return tokens.index_select(1, level.inner.to(tokens.device))


def _probabilities(scores: Tensor, tokens: Tensor) -> list[float]:
    """The probability of one token of each row, from scores ``[B, V]`` and tokens ``[B, 1]``."""
    chosen = scores.gather(-1, tokens)[:, 0]
    values: list[float] = (chosen - scores.logsumexp(-1)).exp().tolist()
    return values
