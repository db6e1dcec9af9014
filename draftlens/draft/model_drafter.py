"""A model drafts: the method of Leviathan et al. (2023), with a tree if one is wanted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from draftlens.core import tree as trees
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY, Topology, chain
from draftlens.draft.arriving import ArrivingRows
from draftlens.draft.base import TargetContext
from draftlens.draft.cached_model import CachedModel
from draftlens.draft.growth import grow
from draftlens.draft.readers import Reader
from draftlens.draft.tuner import TreeTuner, Tuners
from draftlens.sequences import Batch


class ModelDrafter:
    """Drafts with one model, which follows the answers with a cache of its own.

    Args:
        reader: the model and how it reads the prompt.
        topology: the tree to grow (`core.tree.chain` for a chain).
        vocab_size: ids that the target has; the draft may have more or fewer.
        tuners: from rows and length of the prompt, the tuner that chooses the tree of each round,
            none of them larger than `topology`; None for always `topology`.
    """

    needs_target_scores = False

    def __init__(
        self,
        reader: Reader,
        topology: Topology,
        vocab_size: int,
        tuners: Tuners | None = None,
    ) -> None:
        self.reader = reader
        self.topology = topology
        self.tuners = tuners
        self.model = CachedModel(reader.backbone, vocab_size)
        self.max_nodes = len(topology)
        self.readings = reader.readings
        self.tuner: TreeTuner | None = None
        self.proposed: Topology = EMPTY
        self._proposed_at = 0.0
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
            return grow(self._arriving, chain(number), batch, self.model.device)

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
            prompt_length = batch.histories[0].prompt_ids.shape[0]
            self.tuner = self.tuners(len(batch), prompt_length)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """Grow the tree level by level; a budget below its depth cuts it."""
        began = time.perf_counter()
        topology = self.topology if self.tuner is None else self.tuner.tree()
        topology = trees.cut(topology, budget)
        tree = self._grow(topology, batch)
        self._proposed_at = time.perf_counter()
        if self.tuner is not None:
            self.tuner.drafted(topology, self._proposed_at - began)
        return tree

    def _grow(self, topology: Topology, batch: Batch) -> DraftTree:
        self.proposed = topology
        self.model.begin_tree(topology)
        device = self.model.device
        if not topology:
            no_tokens = torch.empty(len(batch), 0, dtype=torch.long, device=device)
            return DraftTree.uniform(topology, no_tokens)
        return grow(self.model, topology, batch, device)

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Keep the accepted path; what the cache lacks of it is forwarded first in the next
        round."""
        if self.tuner is not None:
            paths = [
                path
                for path, history in zip(verdict.paths, batch.histories, strict=True)
                if not history.finished
            ]
            self.tuner.judged(self.proposed, paths, time.perf_counter() - self._proposed_at)
        self.model.keep(verdict, batch)

    def remove(self, row: int) -> None:
        """See `Drafter.remove`."""
        self.model.remove(row)
