"""What a drafter proposes and what the target decides."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.core.tree import Topology


@dataclass(frozen=True)
class DraftTree:
    """What a drafter proposes for every row.

    Args:
        topology: the shape, the same for all rows.
        tokens: guessed token ids, int64 ``[B, N]``.
        probs: draft probabilities at `Topology.inner`, float ``[B, P, V]``; only `rejection` needs
            them.
    """

    topology: Topology
    tokens: Tensor
    probs: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """What the target made of a draft tree.

    Args:
        paths: per row the accepted nodes from the first level down; empty if the first guess was
            wrong.
        tokens: per row the emitted ids: those of the path, then the target's own next token (the
            bonus token).
    """

    paths: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
