"""The protocol of drafters. The decoding loop does not distinguish kinds of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.prefill_readings import NO_READINGS, Readings, ReadingSpec
from draftlens.core.proposal import DraftTree, NextGuess, Verdict
from draftlens.core.references import NO_REFERENCES, References
from draftlens.core.stats import Clock
from draftlens.core.tree import EMPTY
from draftlens.core.view_record import Weighed
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.pruning import Choice

DRAFT_NOISE = 0x5DEECE66D5DEECE6
"""Makes the seed of a draft's own noise from that of the target's."""


def _no_phase(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def ignore(*_: Any) -> None:
    """The default of callbacks."""


@dataclass(frozen=True)
class TargetContext:
    """The target's side of rows that join a drafter.

    Args:
        prompt: as the target's language model read it.
        cache: the target's keys and values of these rows, holding the prompt; not to be changed.
        room: most tokens that an answer may still gain.
        readings: the readings of the prefill that the drafter requested.
        phase: measures a stretch of time: ``with context.phase("prune"): ...``.
        count_pruned: receives the number of visual tokens before and after pruning.
        observe: receives every choice of a pruner.
        weighed: receives what each token shows about the views of an ensemble.
        references: texts that the answers are expected to repeat, one entry for each row that
            joins.
        eos: ids that end the answers of these rows.
        attribute: receives, for each accepted guess, its row in the call and the index of the
            reference that it comes from; -1 for the prompt and the answer itself.
    """

    prompt: Prompt
    cache: KVCache
    room: int = 0
    readings: Readings = field(default_factory=Readings)
    phase: Callable[[str], AbstractContextManager[None]] = _no_phase
    count_pruned: Callable[[int, int], None] = ignore
    observe: Callable[[Choice], None] = ignore
    weighed: Callable[[Weighed], None] = ignore
    references: References = NO_REFERENCES
    eos: frozenset[int] = frozenset()
    attribute: Callable[[int, int], None] = ignore


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


class DraftLane(Protocol):
    """What a drafter that works at the same time as the target is told while the target reads.

    The session calls `announce` before the target reads the prompts of rows, `read` from within its
    prefill if the readings are taken early, `next_guesses` behind the pass over a proposal if a row
    uses rejection sampling, and `close` when it has ended.
    """

    @property
    def cores(self) -> int:
        """Cores that the lane keeps busy and the target leaves alone."""
        ...

    def announce(self, batch: Batch, inputs: Mapping[str, Any], room: int, observed: bool) -> None:
        """Rows are about to be read by the target.

        Args:
            batch: the rows, without any token yet.
            inputs: the output of the draft's processor for them.
            room: most tokens that an answer may gain.
            observed: whether somebody wants the choices of the pruner.
        """
        ...

    def read(self, context: TargetContext) -> None:
        """The readings that the pruner needs are there.

        Args:
            context: the target's side of the rows that were announced last. Its cache may not hold
                the whole prompt yet.
        """
        ...

    def next_guesses(self, tree: DraftTree) -> Sequence[NextGuess | None] | None:
        """The guesses that the lane has written behind those of a proposal, one for each row.

        Args:
            tree: the last proposal, as far as the target has checked it: a chain for each row.

        Returns:
            None, for all rows or for one, where the lane has written none.
        """
        ...

    def record(self, clock: Clock) -> None:
        """Write what the lane has done so far into the statistics."""
        ...

    def close(self) -> None:
        """The session has ended; may be called twice."""
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
