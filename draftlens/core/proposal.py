"""What a drafter proposes and what the target decides."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.core.tree import Topology


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens, one tree per row. N is the size of the largest tree.

    Args:
        topologies: the shape of each row's tree.
        tokens: their ids, int64 ``[B, N]``. A smaller tree is followed by filler ids, which
            are forwarded but never judged and never counted.
        probs: draft probabilities at `Topology.inner` of each row, float ``[B, P, V]``. Only
            rejection sampling needs them.
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
        """N: draft tokens in the largest tree."""
        return self.tokens.shape[1]


@dataclass(frozen=True, eq=False)
class NextGuess:
    """A draft token after a row's chain, in the place of the bonus token. The pass over the chain
    judges it without forwarding it.

    Args:
        token: its id.
        probs: the draft's probabilities that it was drawn from, float ``[V]``.
    """

    token: int
    probs: Tensor


@dataclass(frozen=True)
class Verdict:
    """The target's decision about a draft tree.

    Args:
        paths: per row the accepted nodes from the first level down; empty if none of the first
            level is accepted.
        tokens: per row the emitted ids: those of the path, then the target's own next token (the
            bonus token).
        scores: the target's processed scores at the root and at every node, ``[B, N+1, V]``; None
            unless the drafter requested them (`Drafter.needs_target_scores`).
        tolerated: per row, for each accepted node whether it is another token than the target's
            own choice. Empty where no rule tolerates that.
    """

    paths: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    scores: Tensor | None = None
    tolerated: tuple[tuple[bool, ...], ...] = ()
