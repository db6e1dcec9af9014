"""A package of somebody else: a pruner and a method with a drafter of its own, for draftlens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.readings import NO_READINGS, ReadingSpec
from draftlens.core.tree import chain, cut
from draftlens.decode import Plan, make_schedule
from draftlens.draft import TargetContext
from draftlens.methods import Models
from draftlens.prune import Visual
from draftlens.sequences import Batch


@dataclass(frozen=True)
class NewestPruner:
    """Keeps the newest visual tokens, but for some.

    Args:
        skip: how many of the very newest are left out where that is possible.
    """

    readings: ClassVar[ReadingSpec] = NO_READINGS
    skip: int = 0

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The last `keep` indices before the skipped ones."""
        end = max(keep, len(visual) - self.skip)
        return torch.arange(end - keep, end, device=visual.cells.device)


class HistoryDrafter:
    """Guesses that what followed the last token the last time follows it again.

    Args:
        length: tokens of a guess.
    """

    readings = NO_READINGS
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
        guesses = [
            self._guess(history.ids().tolist(), len(topology)) for history in batch.histories
        ]
        tokens = torch.tensor(guesses, dtype=torch.long).reshape(len(batch), len(topology))
        return DraftTree.uniform(topology, tokens)

    def _guess(self, ids: list[int], length: int) -> list[int]:
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
        length: tokens of a guess.
    """

    length: int = 4

    def plan(self, models: Models) -> Plan:
        """See `draftlens.methods.Method.plan`."""
        return Plan(drafter=HistoryDrafter(self.length), schedule=make_schedule("serial"))
