"""How draft tokens are accepted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.errors import ConfigError
from draftlens.core.proposal import DraftTree, NextProposal, Verdict
from draftlens.core.sequence import Sequence
from draftlens.core.tree import ROOT, batch_depths
from draftlens.core.verify import match, reject, tolerant


@dataclass(frozen=True)
class Acceptance:
    """The rule by which a target accepts draft tokens (`core/verify.py`)."""

    rule: str = "coupled"  # `"coupled"` or `"rejection"`
    # τ of `core.verify.tolerant`; below 1 it replaces `rule`, and answers are greedy
    tolerance: float = 1.0

    @property
    def approximate(self) -> tuple[str, ...]:
        """What is not exact about accepted tokens, in words for the user."""
        if self.tolerance >= 1:
            return ()
        return (f"draft tokens accepted with tolerance {self.tolerance:g}",)

    def check(self, do_sample: bool) -> None:
        """Raise `ConfigError` if tokens are drawn and draft tokens are accepted with tolerance."""
        if self.tolerance < 1 and do_sample:
            raise ConfigError(
                f"a tolerance of {self.tolerance:g} compares draft tokens with the likeliest "
                "token, and with do_sample tokens are drawn: use tolerance=1.0, or greedy decoding"
            )

    def judge(
        self,
        tree: DraftTree,
        logits: Tensor,
        rows: Seq[Sequence],
        batch: Batch,
        next_proposals: Seq[NextProposal | None] | None = None,
    ) -> Verdict:
        """The verdict on a proposal, with the target's processed scores.

        `logits` are the target's, at the root and at every node, ``[B, N+1, V]``; `batch` is
        `rows` as they are now; for `next_proposals` see `core.verify.reject`.
        """
        nodes = [(ROOT, *range(len(topology))) for topology in tree.topologies]
        scores = batch.process(logits, tree.topologies, tree.tokens, nodes)
        if self.tolerance < 1:
            verdict = tolerant(tree, scores, self.tolerance, [row.stopping.eos for row in rows])
            return replace(verdict, scores=scores)
        steps = batch.steps(scores.device) + batch_depths(tree.topologies, scores.device)
        if not batch.rejects:
            return replace(match(tree, batch.ranking(scores, steps)), scores=scores)
        generators = [None if row.finished else row.generator for row in rows]
        by_chance = reject(tree, scores, generators, next_proposals)
        by_match = match(tree, batch.ranking(scores, steps))
        return replace(_by_own_rule(batch, by_chance, by_match), scores=scores)


def _by_own_rule(batch: Batch, by_chance: Verdict, by_match: Verdict) -> Verdict:
    """The verdict of each row by its own rule."""
    verdicts = [by_chance if each.sampling.rejects else by_match for each in batch.histories]
    return Verdict(
        tuple(verdict.paths[row] for row, verdict in enumerate(verdicts)),
        tuple(verdict.tokens[row] for row, verdict in enumerate(verdicts)),
    )
