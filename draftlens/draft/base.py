"""The seam of all drafters: three methods. The loop never asks which kind it has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY, Topology
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.ops.sampling import SamplingRule
from draftlens.sequences.rows import Rows


@dataclass(frozen=True)
class Seen:
    """What the target has made of the prompt when its drafter begins.

    Args:
        prompt: as the target's language model saw it.
        cache: the target's, holding the prompt; not to be changed.
        scores: what a probe read, float32 ``[B, L]``; None unless the drafter asked for it.
        layer_scores: the same layer by layer, each float32 ``[B, L]``; none unless asked for.
        phase: names a stretch of time for the statistics: ``with seen.phase("prune"): ...``.
        pruned: counts visual tokens before and after pruning.
    """

    prompt: Prompt
    cache: KVCache
    scores: Tensor | None
    phase: Callable[[str], AbstractContextManager[None]]
    pruned: Callable[[int, int], None]
    layer_scores: tuple[Tensor, ...] = ()


class Drafter(Protocol):
    """Guesses next tokens for every row of a batch."""

    topology: Topology
    """The largest tree that `propose` returns: caches are sized by it."""

    forwards: int
    """Draft model forwards so far, for the statistics."""

    needs_scores: bool
    """Whether `begin` wants the target's attention to visual tokens, so that its prefill must be
    probed."""

    def begin(self, rows: Rows, room: int, seen: Seen) -> None:
        """Read the prompt. Called once per batch; `room` is the most tokens an answer can have."""
        ...

    def propose(self, rows: Rows, budget: int) -> DraftTree:
        """Guess up to `budget` tokens ahead of `rows` (a tree of at most that depth; the empty tree
        is legal)."""
        ...

    def update(self, verdict: Verdict, rows: Rows) -> None:
        """Learn what became of the last proposal. `rows` has its tokens already; a finished row may
        be forgotten."""
        ...


class NoDraft:
    """Never guesses, which makes the loop plain decoding."""

    topology = EMPTY
    forwards = 0
    needs_scores = False

    def begin(self, rows: Rows, room: int, seen: Seen) -> None:
        """Nothing to read."""

    def propose(self, rows: Rows, budget: int) -> DraftTree:
        """The empty tree."""
        return DraftTree(EMPTY, rows.prompt_ids.new_empty(len(rows), 0))

    def update(self, verdict: Verdict, rows: Rows) -> None:
        """Nothing to learn."""


def draw_children(
    rule: SamplingRule,
    scores: Tensor,
    most: int,
    rows: Tensor,
    steps: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """The `most` guesses at each node, best first, int64 ``[B, M, most]``.

    Greedy: the likeliest. Coupled: the likeliest under the noise that the target will use at this
    position, so equal models choose equally. Rejection: drawn one after the other without
    replacement (the order of Gumbel-perturbed scores is exactly that), with noise of the drafter's
    own.

    Args:
        rule: how tokens are chosen.
        scores: processed draft scores ``[B, M, V]``.
        most: children wanted per node.
        rows, steps: keys of the noise, int64 ``[B]`` and ``[B, M]``.
        generator: of the drafter's own noise (on the CPU); only `rejection` advances it.
    """
    if rule.rejects:
        exponential = torch.empty(scores.shape, dtype=torch.float64).exponential_(
            generator=generator
        )
        ranking = torch.log_softmax(scores.double(), -1) - exponential.log().to(scores.device)
    else:
        ranking = rule.ranking(scores, rows, steps)
    return ranking.argmax(-1, keepdim=True) if most == 1 else ranking.topk(most).indices
