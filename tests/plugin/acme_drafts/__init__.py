"""A package of somebody else: a pruner, a method with a drafter of its own, a view and a weighting,
for draftlens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, log
from typing import Any, ClassVar

import torch
from torch import Tensor

from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec
from draftlens.core.sequence import Batch
from draftlens.core.tree import DraftTree, Verdict, chain, cut
from draftlens.decoding import Plan, make_schedule
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt, prefilled
from draftlens.methods.base import Models
from draftlens.methods.tabed.views import Source
from draftlens.methods.tabed.weights import Seen
from draftlens.pruning import Visual


@dataclass(frozen=True)
class NewestPruner:
    """Keeps the newest visual tokens, but for some.

    Args:
        skip: how many of the very newest are left out where that is possible.
    """

    readings: ClassVar[FeatureSpec] = NO_FEATURES
    skip: int = 0

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The last `keep` indices before the skipped ones."""
        end = max(keep, len(visual) - self.skip)
        return torch.arange(end - keep, end, device=visual.cells.device)


class HistoryDrafter:
    """Drafts what followed the last token the last time.

    Args:
        length: tokens of a chain.
    """

    readings = NO_FEATURES
    needs_target_scores = False
    forwards = 0
    cache_bytes = 0

    def __init__(self, length: int) -> None:
        self.topology = chain(length)
        self.max_nodes = length

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """There is nothing to read."""

    def begin(self, batch: Batch, encoded: None, context: TargetContext) -> None:
        """There is nothing to prepare."""

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """The same chain in every row."""
        topology = cut(self.topology, budget)
        draft_tokens = [
            self._continuation(history.ids().tolist(), len(topology)) for history in batch.histories
        ]
        tokens = torch.tensor(draft_tokens, dtype=torch.long).reshape(len(batch), len(topology))
        return DraftTree.uniform(topology, tokens)

    def _continuation(self, ids: list[int], length: int) -> list[int]:
        *earlier, last = ids
        continuation: list[int] = []
        if last in earlier:
            place = len(earlier) - 1 - earlier[::-1].index(last)
            continuation = ids[place + 1 : place + 1 + length]
        return continuation + [last] * (length - len(continuation))

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """There is nothing to learn."""

    def remove(self, row: int) -> None:
        """There is nothing to drop."""


@dataclass(frozen=True)
class HistoryDecoding:
    """Speculative decoding without a draft model.

    Args:
        length: tokens of a chain.
    """

    length: int = 4

    def plan(self, models: Models) -> Plan:
        """See `draftlens.methods.Method.plan`."""
        return Plan(drafter=HistoryDrafter(self.length), schedule=make_schedule("serial"))


@dataclass(frozen=True)
class FaintView:
    """The draft reads weaker visual tokens.

    Args:
        strength: factor of their embeddings.
    """

    same_without_media: ClassVar[bool] = True
    rewriting: ClassVar[None] = None
    needs_vision: ClassVar[bool] = True
    readings: ClassVar[FeatureSpec] = NO_FEATURES
    strength: float = 0.5

    @property
    def label(self) -> str:
        """See `draftlens.methods.tabed.views.View`."""
        return f"faint {self.strength:g}"

    def read(self, source: Source) -> DraftPrompt:
        """See `draftlens.methods.tabed.views.View`."""
        whole = source.whole
        factors = torch.where(whole.visual, self.strength, 1.0).to(whole.embeds)
        return prefilled(source.backbone, replace(whole, embeds=whole.embeds * factors[..., None]))


class LatestTally:
    """Which views have just found a token likely.

    Args:
        shares: weight of each view.
        smallest: of a weight.
    """

    def __init__(self, shares: Sequence[float], smallest: float) -> None:
        self.shares = list(shares)
        self.smallest = smallest

    @property
    def log_weights(self) -> list[float]:
        """See `draftlens.methods.tabed.weights.Tally`."""
        total = sum(self.shares)
        return [log(share / total) for share in self.shares]

    def observe(self, seen: Seen) -> None:
        """Whoever was asked has the weight of its last likelihood."""
        for view, value in enumerate(seen.log_likelihoods):
            if not isnan(value):
                self.shares[view] = max(2.0**value, self.smallest)


@dataclass(frozen=True)
class LatestWeights:
    """Weights by the last token alone.

    Args:
        smallest: of a weight.
    """

    needs_target_scores: ClassVar[bool] = False
    follows_path: ClassVar[bool] = False
    can_rest: ClassVar[bool] = False
    smallest: float = 0.01

    def tally(self, names: Sequence[str]) -> LatestTally:
        """See `draftlens.methods.tabed.weights.Weighting`."""
        return LatestTally([1.0] * len(names), self.smallest)
