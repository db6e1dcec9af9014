"""A smaller model of the same tokenizer drafts: the method of Leviathan et al. (2023), with a tree
if one is wanted.

The draft keeps its own cache along the accepted path, so no accepted token is forwarded twice. Only
inner nodes of the tree are expanded, one forward per level.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY, ROOT, Topology
from draftlens.draft.base import Seen, draw_children
from draftlens.draft.pruned import Pruning
from draftlens.draft.tuner import Tuners
from draftlens.models.backbone import Backbone
from draftlens.ops.sampling import generator_of
from draftlens.sequences.rows import Rows


@dataclass(frozen=True)
class Level:
    """How one level of a tree comes from the one above.

    Args:
        nodes: where the level's nodes stand in the tree.
        parents: for each of them, the row of its parent among the expanded nodes of the level
            above.
        ranks: for each of them, how many siblings come before it.
        expanded: which of them have children themselves, relative to the level.
        window: bool ``[E, W]``, which of the W nodes expanded so far each expanded node sees.
        sees_all: whether that is all of them, as along a chain.
    """

    nodes: slice
    parents: list[int]
    ranks: list[int]
    expanded: list[int]
    window: Tensor
    sees_all: bool


@lru_cache
def levels(topology: Topology) -> tuple[Level, ...]:
    """The plan by which a draft grows a tree."""
    plan, above = [], [ROOT]
    inner = topology.inner[1:]
    seen = trees.ancestors(topology)[1:, 1:]
    for depth in range(1, topology.depth + 1):
        nodes = [node for node, d in enumerate(topology.depths) if d == depth]
        parents = [above.index(topology.parents[node]) for node in nodes]
        ranks = [topology.children[topology.parents[node]].index(node) for node in nodes]
        above = [node for node in nodes if node in topology.children]
        so_far = [node for node in inner if topology.depths[node] <= depth]
        window = seen[above][:, so_far]
        level = slice(nodes[0], nodes[-1] + 1)
        expanded = [node - nodes[0] for node in above]
        plan.append(Level(level, parents, ranks, expanded, window, bool(window.all())))
    return tuple(plan)


class SmallModelDrafter:
    """Drafts with a model of its own.

    Args:
        backbone: the draft model.
        inputs: what the draft's processor made of the same prompt.
        topology: the tree to grow (`core.tree.chain` for a chain).
        vocab: ids that the target knows; the draft may know more or fewer.
        pruning: which visual tokens it reads; None for all.
        tuners: from rows and length of the prompt, who chooses the tree of each round, none of them
            larger than `topology`; None for always `topology`.
    """

    def __init__(
        self,
        backbone: Backbone,
        inputs: Mapping[str, Any],
        topology: Topology,
        vocab: int,
        pruning: Pruning | None = None,
        tuners: Tuners | None = None,
    ) -> None:
        self.backbone, self.inputs, self.topology, self.vocab = backbone, inputs, topology, vocab
        self.pruning, self.tuners = pruning, tuners
        self.needs_scores = pruning is not None and pruning.pruner.needs_scores
        self.forwards = 0

    def begin(self, rows: Rows, room: int, seen: Seen) -> None:
        """Read the prompt and get ready to guess."""
        self._read(seen, room + len(self.topology.inner) + 1)
        self.device = self.backbone.device
        self.generator = generator_of(rows.rule.seed)
        self.tuner = self.tuners(*rows.prompt_ids.shape) if self.tuners else None
        self.numbers = rows.numbers(self.device)
        self.pending: list[list[int]] = []
        self.proposed = EMPTY

    def _read(self, seen: Seen, room: int) -> None:
        """Encode the prompt with the draft's own vision tower, prune it and prefill the draft's
        cache."""
        prepared = self.backbone.prepare(self.inputs, max_new_tokens=1)
        self.prompt = self.backbone.encode(prepared)
        if self.pruning:
            self.prompt, _ = self.pruning.apply(self.prompt, seen)
        self.cache = self.backbone.new_cache(self.prompt, room)
        self.backbone.prefill(self.prompt, self.cache)

    def propose(self, rows: Rows, budget: int) -> DraftTree:
        """Grow the tree level by level; a budget below its depth cuts it."""
        began = time.perf_counter()
        topology = trees.cut(self.tuner.tree() if self.tuner else self.topology, budget)
        tree = self._grow(topology, rows)
        self.proposed_at = time.perf_counter()
        if self.tuner:
            self.tuner.drafted(topology, self.proposed_at - began)
        return tree

    def _grow(self, topology: Topology, rows: Rows) -> DraftTree:
        self.proposed, self.start = topology, list(self.cache.lengths)
        self.pending = self.pending or [tokens[-1:] for tokens in rows.tokens]
        tokens = torch.empty(len(rows), len(topology), dtype=torch.long, device=self.device)
        if not topology:
            return DraftTree(topology, tokens)
        step = rows.steps(self.device)
        logits = self._catch_up(step)
        probs: list[Tensor] = []
        above = [ROOT]
        for depth, level in enumerate(levels(topology)):
            scores = rows.rule.process(logits, partial(rows.histories, topology, tokens, above))
            if rows.rule.rejects:
                probs.append(torch.softmax(scores.double(), -1))
            most = max(level.ranks) + 1
            steps = (step + depth).expand(-1, scores.shape[1])
            children = draw_children(rows.rule, scores, most, self.numbers, steps, self.generator)
            single = len(level.parents) == 1
            tokens[:, level.nodes] = (
                children[:, 0] if single else children[:, level.parents, level.ranks]
            )
            if level.expanded:
                above = [level.nodes.start + node for node in level.expanded]
                logits = self._expand(tokens[:, above], step + depth, level)
        return DraftTree(topology, tokens, torch.cat(probs, 1) if probs else None)

    def update(self, verdict: Verdict, rows: Rows) -> None:
        """Keep what the cache holds of each accepted path; what it lacks comes first in the next
        round."""
        if self.tuner:
            running = [
                path
                for path, finished in zip(verdict.paths, rows.finished, strict=True)
                if not finished
            ]
            self.tuner.judged(self.proposed, running, time.perf_counter() - self.proposed_at)
        if self.proposed:
            self._keep(verdict)
        else:
            self.pending = [
                [*old, *new] for old, new in zip(self.pending, verdict.tokens, strict=True)
            ]
        for row, finished in enumerate(rows.finished):
            if finished:  # it goes on being forwarded beside the others, but must not grow
                self.cache.lengths[row] = self.start[row]
                self.pending[row] = rows.tokens[row][-1:]

    def _keep(self, verdict: Verdict) -> None:
        """Keep the accepted nodes that were forwarded; those that were not are pending."""
        slot = {node: index for index, node in enumerate(self.proposed.inner[1:])}
        held = [[slot[node] for node in path if node in slot] for path in verdict.paths]
        self.cache.keep(self.base, held)
        self.pending = [
            list(tokens[len(slots) :]) for tokens, slots in zip(verdict.tokens, held, strict=True)
        ]

    def _catch_up(self, step: Tensor) -> Tensor:
        """Forward what the target emitted since; logits behind the last token, ``[B, 1, V]``."""
        counts = [len(tokens) for tokens in self.pending]
        width = max(counts)
        # A row with less to catch up on repeats its last token behind itself: never seen, soon
        # overwritten.
        padded = [tokens + tokens[-1:] * (width - len(tokens)) for tokens in self.pending]
        tokens = torch.tensor(padded, device=self.device)
        first = step - torch.tensor(counts, device=self.device)[:, None]
        mask = trees.attention_mask(
            self.start, torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        )
        logits = self._forward(tokens, first + torch.arange(width, device=self.device), mask)
        self.base = [start + count for start, count in zip(self.start, counts, strict=True)]
        self.cache.truncate(self.base)
        if min(counts) == width:
            return logits[:, -1:]
        return logits[self.numbers[:, None], torch.tensor(counts, device=self.device)[:, None] - 1]

    def _expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Forward one level's inner nodes; logits ``[B, E, V]``."""
        free = level.sees_all and self.cache.uniform
        mask = None if free else trees.attention_mask(self.base, level.window.to(self.device))
        return self._forward(tokens, steps.expand(-1, tokens.shape[1]), mask)

    def _forward(self, tokens: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
        self.forwards += 1
        tokens = tokens.clamp_max(
            self.backbone.vocab_size - 1
        )  # the target may know ids that the draft does not
        logits = self.backbone.forward(tokens, self.prompt.positions(steps), self.cache, mask)
        missing = self.vocab - logits.shape[-1]
        if missing <= 0:
            return logits[..., : self.vocab]
        # Logits processors are bound to the target's ids: those that the draft lacks are there, but
        # never likely.
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
