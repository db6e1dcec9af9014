"""The protocol of drafters. The decoding loop does not distinguish kinds of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.prefill_readings import NO_READINGS, Readings, ReadingSpec
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY
from draftlens.decoding.observer import NO_OBSERVER, Observer
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

DRAFT_NOISE = 0x5DEECE66D5DEECE6
"""Makes the seed of a draft's own noise from that of the target's."""


@dataclass(frozen=True)
class TargetContext:
    """The target's side of rows that join a drafter.

    Args:
        prompt: as the target's language model read it.
        cache: the target's keys and values of these rows, holding the prompt; not to be changed.
        room: most tokens that an answer may still gain.
        readings: the readings of the prefill that the drafter requested.
        observer: is told what the drafter does.
        extras: what the method reads of a call besides the prompts (`Plan.extras`), by name.
        eos: ids that end the answers of these rows.
    """

    prompt: Prompt
    cache: KVCache
    room: int = 0
    readings: Readings = field(default_factory=Readings)
    observer: Observer = NO_OBSERVER
    extras: Mapping[str, Any] = field(default_factory=dict)
    eos: frozenset[int] = frozenset()


class Drafter(Protocol):
    """Proposes next tokens for every row of a batch: `encode` and `begin` once for rows that join,
    then `propose` and `update` in turn, and `remove` for a row that leaves."""

    max_nodes: int
    """Most draft tokens of a row that `propose` returns; 0 for none ever."""

    readings: ReadingSpec
    """The readings of the target's prefill that `begin` needs."""

    needs_target_scores: bool
    """Whether `update` needs `Verdict.scores`."""

    @property
    def forwards(self) -> int:
        """Decode forwards of the draft model so far, for the statistics."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of the drafter's keys and values in all processes, for the statistics; also after
        the end of an answer."""
        ...

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """What `begin` needs of the output of the draft's processor for rows that will join."""
        ...

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """Let rows join, after the rows that are there.

        Args:
            batch: the rows that join; each has its first token already.
            encoded: the result of `encode` for them.
            context: the target's side of them.
        """
        ...

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """Draft tokens for every row.

        Args:
            batch: all rows.
            budget: greatest useful depth of a tree. The empty tree is legal.
        """
        ...

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Receive the verdict on the last proposal.

        Args:
            verdict: as far as its tokens were emitted.
            batch: all rows, with these tokens. Rows that have ended need not be kept up to date;
                after the last round of an answer all have.
        """
        ...

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        ...


class NoDraft:
    """Drafts nothing, which makes the loop plain decoding."""

    max_nodes = 0
    readings = NO_READINGS
    needs_target_scores = False
    forwards: int = 0
    cache_bytes: int = 0

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """Nothing is read."""

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """Nothing is prepared."""

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """The empty tree."""
        return DraftTree.uniform(EMPTY, torch.empty(len(batch), 0, dtype=torch.long))

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Nothing depends on it."""

    def remove(self, row: int) -> None:
        """No row is kept."""


def draw_children(batch: Batch, scores: Tensor, most: int, steps: Tensor) -> Tensor:
    """The `most` draft tokens at each node, best first, int64 ``[B, M, most]``.

    Greedy: the likeliest. Coupled: the likeliest under the noise that the target will use at this
    position, so equal models choose equally. Rejection: drawn one after the other without
    replacement (the order of Gumbel-perturbed scores is exactly that), with other noise than the
    target's. That noise is keyed by the position too: of all draft tokens at one position the
    target judges those of one node at most, so no noise is used twice.

    Args:
        batch: the rows, whose sampling rules decide.
        scores: processed draft scores ``[B, M, V]``.
        most: children wanted per node.
        steps: index in its answer of the token to draft, int64 ``[B, M]``.
    """
    ranking = batch.ranking(scores, steps)
    if batch.rejects:
        ranking = ranking.double()
        seeds = batch.seeds(scores.device) ^ DRAFT_NOISE
        for rule, rows in batch.rules.items():
            if rule.rejects:
                ranking[rows] = rule.ranking(scores[rows], seeds[rows], steps[rows])
    if most == 1:
        return ranking.argmax(-1, keepdim=True)
    return ranking.topk(most).indices
