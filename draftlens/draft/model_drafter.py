"""A model drafts: the method of Leviathan et al. (2023), with a tree if one is wanted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draftlens.core import tree as trees
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY, Topology, chain
from draftlens.draft.arriving import ArrivingRows
from draftlens.draft.base import TargetContext
from draftlens.draft.cached_model import CachedModel
from draftlens.draft.disagreement import Disagreement
from draftlens.draft.growth import grow
from draftlens.draft.readers import Reader
from draftlens.draft.records import Tuners
from draftlens.draft.tuner import Situation, TreeTuner
from draftlens.sequences import Batch


class ModelDrafter:
    """Drafts with one model, which follows the answers with a cache of its own.

    Args:
        reader: the model and how it reads the prompt.
        topology: the tree to grow (`core.tree.chain` for a chain).
        vocab_size: ids that the target has; the draft may have more or fewer.
        tuners: from the kind of prompt, the tuner that chooses the tree of each round, none of them
            larger than `topology`; None for always `topology`.
        disagreement: counts the first guesses that are wrong; None for nobody.
    """

    needs_target_scores = False

    def __init__(
        self,
        reader: Reader,
        topology: Topology,
        vocab_size: int,
        tuners: Tuners | None = None,
        disagreement: Disagreement | None = None,
    ) -> None:
        self.reader = reader
        self.topology = topology
        self.tuners = tuners
        self.disagreement = disagreement
        self.model = CachedModel(reader.backbone, vocab_size)
        self.max_nodes = len(topology)
        self.readings = reader.readings
        self.tuner: TreeTuner | None = None
        self._proposed = EMPTY
        self._proposed_at = 0.0
        self._confidences: list[list[float]] = []
        self._arriving: ArrivingRows | None = None

    @property
    def forwards(self) -> int:
        """Decode forwards of the model so far."""
        return self.model.forwards

    @property
    def cache_bytes(self) -> int:
        """Bytes of the model's cache."""
        return self.model.nbytes

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """See `Drafter.encode`."""
        return self.reader.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """See `Drafter.begin`."""
        self._join(self._read(encoded, context), batch, context)

    def guess_first(
        self, batch: Batch, inputs: Mapping[str, Any], context: TargetContext, number: int
    ) -> DraftTree:
        """See `FirstGuesser.guess_first`."""
        self._arriving = self._read(self.encode(inputs), context)
        with context.phase("draft"):
            logits = self._arriving.catch_up(batch.steps(self.model.device))
            return grow(self._arriving, chain(number), batch, logits)

    def join_first(self, batch: Batch, context: TargetContext) -> None:
        """See `FirstGuesser.join_first`."""
        assert self._arriving is not None
        self._join(self._arriving, batch, context)
        self._arriving = None

    def _read(self, encoded: Any, context: TargetContext) -> ArrivingRows:
        draft = self.reader.read(encoded, context)
        room = context.room + len(self.topology.inner) + 1
        return self.model.read(draft.prompt, draft.fill, room)

    def _join(self, rows: ArrivingRows, batch: Batch, context: TargetContext) -> None:
        self.model.take(rows, batch)
        if self.tuners is not None and self.tuner is None:
            self.tuner = self.tuners(context.prompt.kind)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """Grow the tree level by level; a budget below its depth cuts it."""
        self.model.begin_round()
        if self.tuner is not None:
            return self._propose_tuned(self.tuner, batch, budget)
        topology = trees.cut(self.topology, budget)
        self._proposed = topology
        if not topology:
            return _no_tree(batch, self.model.device)
        logits = self.model.catch_up(batch.steps(self.model.device))
        self.model.end_growth(topology, topology.depth)
        return grow(self.model, topology, batch, logits)

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Keep the accepted path; what the cache lacks of it is forwarded first in the next
        round."""
        if self.tuner is not None:
            self._record_verdict(self.tuner, verdict, batch)
        if self.disagreement is not None and self._proposed:
            self.disagreement.count_verdict(verdict, batch)
        self.model.keep(verdict, batch)

    def _propose_tuned(self, tuner: TreeTuner, batch: Batch, budget: int) -> DraftTree:
        """Grow the tree that a tuner chooses, as far as it wants it to grow."""
        began = time.perf_counter()
        watch = _Watch(tuner, batch)
        tree = self._grow_tuned(tuner, watch, batch, budget)
        self._proposed_at = time.perf_counter()
        tuner.drafted(self.model.widths, self._proposed_at - began)
        self._proposed = tree.topologies[0]
        self._confidences = watch.confidences
        return tree

    def _grow_tuned(self, tuner: TreeTuner, watch: _Watch, batch: Batch, budget: int) -> DraftTree:
        device = self.model.device
        topology = trees.cut(tuner.tree(self._situation(batch, budget)), budget)
        if not topology:
            return _no_tree(batch, device)
        logits = self.model.catch_up(batch.steps(device))
        hits, misses = self.model.agreement if batch.is_greedy else (0, 0)
        if self.disagreement is not None:
            self.disagreement.count(hits, misses)
            self.disagreement.warn()
        topology = trees.cut(tuner.caught_up(hits, misses), budget)
        if not topology:
            return _no_tree(batch, device)
        tree = grow(self.model, topology, batch, logits, watch)
        self.model.end_growth(topology, tree.topologies[0].depth)
        kept = trees.cut(topology, tuner.kept_depth)
        return DraftTree.uniform(kept, tree.tokens[:, : len(kept)])

    def _situation(self, batch: Batch, budget: int) -> Situation:
        return Situation(
            rows=len(batch),
            context=max(len(h.prompt_ids) + h.length for h in batch.histories),
            draft_context=max(self.model.lengths),
            pending=max(map(len, self.model.pending)),
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
            [[values[row] for values in self._confidences] for row in rows],
        )

    def remove(self, row: int) -> None:
        """See `Drafter.remove`."""
        self.model.remove(row)


class _Watch:
    """Lets a tuner end the growth of a tree; keeps the confidences of all rows by level."""

    def __init__(self, tuner: TreeTuner, batch: Batch) -> None:
        self.tuner = tuner
        self.confidences: list[list[float]] = []
        self._running = [row for row, h in enumerate(batch.histories) if not h.finished]

    def grown(self, confidences: Sequence[float]) -> bool:
        """See `growth.Watch.grown`."""
        self.confidences.append(list(confidences))
        return self.tuner.grown([confidences[row] for row in self._running])


def _no_tree(batch: Batch, device: torch.device) -> DraftTree:
    tokens = torch.empty(len(batch), 0, dtype=torch.long, device=device)
    return DraftTree.uniform(EMPTY, tokens)
