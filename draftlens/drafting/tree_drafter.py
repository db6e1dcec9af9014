"""Drafts trees: the method of Leviathan et al. (2023), with a tree if one is wanted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.core.prefill_readings import ReadingSpec
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY, Topology
from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.adaptive.controller import Situation, TreeTuner
from draftlens.drafting.adaptive.history import Tuners
from draftlens.drafting.disagreement import Disagreement
from draftlens.drafting.growth import Level, Nodes, grow


class Follower(Protocol):
    """Follows the answers of a batch in caches of its own, and scores the trees that grow out of
    them (`TreeScorer`): one model, or several views of the prompt.

    One round is `begin_round`, `catch_up`, one `process` and `expand` for each level that has
    children below it (or one `run_on` for all of them), `end_growth` and `keep`. Where nothing is
    drafted, it is `begin_round` and `keep`.
    """

    device: torch.device
    """The device of its logits."""

    readings: ReadingSpec
    """The readings of the target's prefill that `join` needs."""

    needs_target_scores: bool
    """Whether `keep` needs `Verdict.scores`."""

    agreement: tuple[int, int]
    """How many of the tokens that were pending in the last `catch_up` would have been guessed, and
    how many not."""

    @property
    def widths(self) -> list[int]:
        """New tokens of each forward of this round, all rows together."""
        ...

    @property
    def pending(self) -> list[list[int]]:
        """Per row, emitted tokens that the cache lacks; never empty."""
        ...

    @property
    def num_views(self) -> int:
        """How many times a forward reads each new token, once for each view of the prompt."""
        ...

    @property
    def forwards(self) -> int:
        """Decode forwards so far."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        ...

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row."""
        ...

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """See `Drafter.encode`."""
        ...

    def join(self, encoded: Any, batch: Batch, context: TargetContext, room: int) -> None:
        """Read the prompts of rows that join.

        Args:
            encoded: the result of `encode` for them.
            batch: these rows, with at least one token each.
            context: the target's side of them.
            room: further tokens of each row, guesses included.
        """
        ...

    def begin_round(self) -> None:
        """Begin a round. Unless `catch_up` follows, nothing is drafted in it."""
        ...

    def catch_up(self, steps: Tensor) -> Tensor:
        """See `TreeScorer.catch_up`."""
        ...

    def process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """See `TreeScorer.process`."""
        ...

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """See `TreeScorer.expand`."""
        ...

    def run_on(self, logits: Tensor, steps: Tensor, count: int) -> Tensor | None:
        """See `TreeScorer.run_on`."""
        ...

    def end_growth(self, topology: Topology, depth: int) -> None:
        """Learn which nodes were forwarded.

        Args:
            topology: the tree of this round.
            depth: of the deepest level that was grown. The nodes above it were forwarded if they
                have children.
        """
        ...

    def keep(self, verdict: Verdict, batch: Batch) -> None:
        """Keep what was accepted.

        Args:
            verdict: on the tree of this round.
            batch: all rows, with the verdict's tokens.
        """
        ...

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        ...


class TreeDrafter:
    """Grows a tree for every row out of the scores of a follower.

    Args:
        follower: follows the answers and scores the nodes.
        topology: the tree to grow (`core.tree.chain` for a chain).
        tuners: from the kind of prompt, the tuner that chooses the tree of each round, none of them
            larger than `topology`; None for always `topology`.
        disagreement: counts the first draft tokens that are rejected; None for nobody.
    """

    def __init__(
        self,
        follower: Follower,
        topology: Topology,
        tuners: Tuners | None = None,
        disagreement: Disagreement | None = None,
    ) -> None:
        self.follower = follower
        self.topology = topology
        self.tuners = tuners
        self.disagreement = disagreement
        self.max_nodes = len(topology)
        self.readings = follower.readings
        self.needs_target_scores = follower.needs_target_scores
        self.tuner: TreeTuner | None = None
        self._proposed = EMPTY
        self._proposed_at = 0.0

    @property
    def forwards(self) -> int:
        """Decode forwards of the model so far."""
        return self.follower.forwards

    @property
    def cache_bytes(self) -> int:
        """Bytes of the follower's keys and values."""
        return self.follower.nbytes

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """See `Drafter.encode`."""
        return self.follower.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """See `Drafter.begin`."""
        room = context.room + len(self.topology.inner) + 1
        self.follower.join(encoded, batch, context, room)
        if self.tuners is not None and self.tuner is None:
            self.tuner = self.tuners(context.prompt.kind)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """Grow the tree level by level; a budget below its depth cuts it."""
        self.follower.begin_round()
        if self.tuner is not None:
            return self._propose_tuned(self.tuner, batch, budget)
        topology = trees.cut(self.topology, budget)
        self._proposed = topology
        if not topology:
            return _no_tree(batch, self.follower.device)
        logits = self.follower.catch_up(batch.steps(self.follower.device))
        self.follower.end_growth(topology, topology.depth)
        return grow(self.follower, topology, batch, logits)

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Keep the accepted path; what the cache lacks of it is forwarded first in the next
        round."""
        if self.tuner is not None:
            self._record_verdict(self.tuner, verdict, batch)
        if self.disagreement is not None and self._proposed:
            going_on = [not history.finished for history in batch.histories]
            hits = sum(map(bool, compress(verdict.paths, going_on)))
            self.disagreement.count(hits, sum(going_on) - hits)
        self.follower.keep(verdict, batch)

    def _propose_tuned(self, tuner: TreeTuner, batch: Batch, budget: int) -> DraftTree:
        """Grow the tree that a tuner chooses, as far as it wants it to grow."""
        began = time.perf_counter()
        watch = _Watch(tuner, batch)
        tree = self._grow_tuned(tuner, watch, batch, budget)
        self._proposed_at = time.perf_counter()
        tuner.drafted(self.follower.widths, self._proposed_at - began)
        self._proposed = tree.topologies[0]
        return tree

    def _grow_tuned(self, tuner: TreeTuner, watch: _Watch, batch: Batch, budget: int) -> DraftTree:
        device = self.follower.device
        topology = trees.cut(tuner.tree(self._situation(batch, budget)), budget)
        if not topology:
            return _no_tree(batch, device)
        logits = self.follower.catch_up(batch.steps(device))
        hits, misses = self.follower.agreement if batch.is_greedy else (0, 0)
        if self.disagreement is not None:
            self.disagreement.count(hits, misses)
        topology = trees.cut(tuner.caught_up(hits, misses), budget)
        if not topology:
            return _no_tree(batch, device)
        tree = grow(self.follower, topology, batch, logits, watch)
        self.follower.end_growth(topology, tree.topologies[0].depth)
        kept = trees.cut(topology, tuner.kept_depth)
        return DraftTree.uniform(kept, tree.tokens[:, : len(kept)])

    def _situation(self, batch: Batch, budget: int) -> Situation:
        return Situation(
            rows=len(batch),
            views=self.follower.num_views,
            context=max(len(h.prompt_ids) + h.length for h in batch.histories),
            draft_context=max(self.follower.lengths),
            pending=max(map(len, self.follower.pending)),
            remaining=budget + 1,
        )

    def _record_verdict(self, tuner: TreeTuner, verdict: Verdict, batch: Batch) -> None:
        seconds = time.perf_counter() - self._proposed_at
        rows = [row for row, history in enumerate(batch.histories) if not history.finished]
        if not rows:
            tuner.ended()
            return
        tuner.judged(
            self._proposed,
            [verdict.paths[row] for row in rows],
            seconds,
        )

    def remove(self, row: int) -> None:
        """See `Drafter.remove`."""
        self.follower.remove(row)


class _Watch:
    """Lets a tuner end the growth of a tree."""

    def __init__(self, tuner: TreeTuner, batch: Batch) -> None:
        self.tuner = tuner
        self._running = [row for row, h in enumerate(batch.histories) if not h.finished]

    def grown(self, confidences: Sequence[float]) -> bool:
        """See `growth.Watch.grown`."""
        return self.tuner.grown([confidences[row] for row in self._running])


def _no_tree(batch: Batch, device: torch.device) -> DraftTree:
    tokens = torch.empty(len(batch), 0, dtype=torch.long, device=device)
    return DraftTree.uniform(EMPTY, tokens)
