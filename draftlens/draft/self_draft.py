"""The target drafts for itself: the same weights, reading a pruned prompt (SpecVLM's Self-SD, and
Sparse-to-Dense).

Nothing is loaded twice and nothing is encoded twice: the draft's prompt is the target's, with most
of its visual tokens left out, and its keys and values come from a second prefill of that or
straight from the target's cache.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.tree import Topology
from draftlens.draft.base import Seen
from draftlens.draft.pruned import Pruning
from draftlens.draft.small_model import SmallModelDrafter
from draftlens.draft.tuner import Tuners
from draftlens.models.backbone import Backbone
from draftlens.models.cache import KVCache
from draftlens.prune.attention import AttentionPruner

SOURCES = ("prefill", "gather", "sparse")


def check_source(kv: str, positions: str) -> None:
    """Refuse a source of keys and values that nobody knows, or that cannot give them at these
    positions.

    Raises:
        ConfigError: another word for `kv`, or gathered keys at positions other than their own.
    """
    if kv not in SOURCES:
        raise ConfigError(f"unknown kv {kv!r}; known: {', '.join(SOURCES)}")
    if kv != "prefill" and positions != "original":
        raise ConfigError(
            'gathered keys carry the positions they were made at: positions must be "original"'
        )


class SelfDrafter(SmallModelDrafter):
    """Drafts with the target's own weights.

    Args:
        backbone: the target.
        topology: the tree to grow.
        pruning: which visual tokens it reads.
        tuners: as for `SmallModelDrafter`.
        kv: where its keys and values come from: `prefill` reads the pruned prompt again (the paper:
            tokens then see only each other), `gather` takes those that the target's prefill made
            (no second pass), `sparse` takes in each layer those that this layer's text attends to
            most (Sparse-to-Dense, whatever the pruner).

    Raises:
        ConfigError: `kv` and the pruning's positions do not go together (`check_source`).
    """

    def __init__(
        self,
        backbone: Backbone,
        topology: Topology,
        pruning: Pruning,
        kv: str = "prefill",
        tuners: Tuners | None = None,
    ) -> None:
        check_source(kv, pruning.positions)
        if kv == "sparse":
            pruning = replace(pruning, pruner=AttentionPruner())
        super().__init__(backbone, {}, topology, backbone.vocab_size, pruning, tuners)
        self.kv = kv

    def _read(self, seen: Seen, room: int) -> None:
        """Prune the target's prompt and fill a cache of its own with what is left."""
        assert self.pruning is not None
        self.prompt, kept = self.pruning.apply(seen.prompt, seen)
        self.cache = self.backbone.new_cache(self.prompt, room)
        if self.kv == "prefill":
            self.backbone.prefill(self.prompt, self.cache)
            return
        by_layer = [kept] * len(self.cache.layers)
        if self.kv == "sparse":
            with seen.phase("prune"):
                by_layer = [
                    self.pruning.keep(seen.prompt, replace(seen, scores=layer))
                    for layer in seen.layer_scores
                ]
        copy_slots(seen.cache, self.cache, by_layer)


def copy_slots(source: KVCache, target: KVCache, kept: list[list[Tensor]]) -> None:
    """Fill an empty cache with some of the tokens of another one.

    Args:
        source: holds at least the tokens that are named.
        target: empty, of the same layers and rows.
        kept: per layer and row the slots to take, int64 ``[K]``; a row keeps equally many in every
            layer.
    """
    for old, new, rows in zip(source.layers, target.layers, kept, strict=True):
        longest = max(map(len, rows))
        index = torch.zeros(len(rows), longest, dtype=torch.long, device=old.device)
        for number, slots in enumerate(rows):
            index[number, : len(slots)] = slots
        row = torch.arange(len(rows), device=old.device)[:, None]
        with torch.inference_mode():
            # [B, K, H, D] after indexing by rows and slots; the cache's order is [B, H, K, D].
            new.update(
                old.keys[row, :, index].transpose(1, 2), old.values[row, :, index].transpose(1, 2)
            )
    target.truncate([len(slots) for slots in kept[0]])
