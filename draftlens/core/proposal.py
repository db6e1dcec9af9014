"""A drafter's proposal and the target's verdict."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.core.tree import Topology


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens, one tree per row: int64 ``[B, N]``, N of the largest tree.

    Smaller trees are padded with filler ids, which are forwarded but never verified and never
    counted. `probs` are draft probabilities at `Topology.inner` of each row, float ``[B, P, V]``,
    for rejection sampling only.
    """

    topologies: tuple[Topology, ...]
    tokens: Tensor
    probs: Tensor | None = None

    @classmethod
    def uniform(cls, topology: Topology, tokens: Tensor, probs: Tensor | None = None) -> DraftTree:
        """The same topology in every row of `tokens` ``[B, N]``."""
        return cls((topology,) * len(tokens), tokens, probs)

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]


@dataclass(frozen=True, eq=False)
class NextProposal:
    """A draft token after a row's chain, verified in the place of the bonus token without a
    forward; `probs` are the probabilities it was drawn from, float ``[V]``."""

    token: int
    probs: Tensor


@dataclass(frozen=True)
class Verdict:
    """The target's decision about a draft tree.

    Args:
        paths: per row the accepted nodes from the first level down; may be empty.
        tokens: per row the emitted ids: those of the path, then the bonus token.
        scores: the target's processed scores at the root and at every node, ``[B, N+1, V]``; None
            unless the drafter requests them (`Drafter.needs_target_scores`).
        tolerated: per row and accepted node, whether it differs from the target's own choice; empty
            without a tolerant rule.
    """

    paths: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    scores: Tensor | None = None
    tolerated: tuple[tuple[bool, ...], ...] = ()
