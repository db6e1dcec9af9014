"""Simulation of greedy speculative decoding from the draft's ranks of the target's tokens.

A greedy draft proposes its highest ranked tokens. The rank of each token of the target's answer in
the draft's scores therefore decides how many draft tokens every verification pass accepts, for any
tree of draft tokens, and no model has to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftlens.core.tree import ROOT, Topology, chain
from draftlens_lab.measure.statistics import Share

GAMMAS = tuple(range(1, 11))
GAMMA = 5


def accepted_depth(ranks: Sequence[int], tree: Topology) -> int:
    """Number of consecutive tokens that the draft tree of one pass predicts.

    Args:
        ranks: the draft's rank, from 1, of each token that follows.
        tree: shape of the draft tree; siblings hold the draft's best choices in order.
    """
    node = ROOT
    depth = 0
    for rank in ranks:
        children = tree.children.get(node, ())
        if rank > len(children):
            break
        node = children[rank - 1]
        depth += 1
    return depth


def accepted_per_pass(ranks: Sequence[int], tree: Topology) -> list[int]:
    """Number of accepted draft tokens of each verification pass over one greedy answer.

    Each pass emits its accepted draft tokens and one token of the target.

    Args:
        ranks: the draft's rank, from 1, of each token after the first, which prefill yields.
        tree: shape of the draft tree.
    """
    accepted = []
    start = 0
    while start < len(ranks):
        depth = accepted_depth(ranks[start : start + tree.depth], tree)
        accepted.append(depth)
        start += depth + 1
    return accepted


def rounds(hits: Sequence[bool], gamma: int) -> list[int]:
    """Number of accepted draft tokens of each verification pass, for a chain of draft tokens.

    Args:
        gamma: draft tokens per pass.
    """
    return accepted_per_pass([1 if hit else 2 for hit in hits], chain(gamma))


def acceptance_length(answers: Sequence[Sequence[bool]], gamma: int) -> float | None:
    """Mean acceptance length: tokens emitted by verification passes / passes, bonus token included,
    as `draftlens.core.stats` defines it.

    Args:
        gamma: draft tokens per pass.

    Returns:
        The length; None if there are no passes.
    """
    passes = sum(len(rounds(hits, gamma)) for hits in answers)
    tokens = sum(len(hits) for hits in answers)
    return tokens / passes if passes else None


def by_depth(answers: Sequence[Sequence[bool]], gamma: int) -> dict[str, Any]:
    """Acceptance of draft tokens by their depth in the chain.

    Counts draft tokens after accepted ones only, and none beyond the end of an answer.

    Args:
        gamma: draft tokens per pass.

    Returns:
        Depth, from 1 and as text, to the share of accepted draft tokens (`Share.to_json`).
    """
    right = [0] * gamma
    total = [0] * gamma
    for hits in answers:
        start = 0
        for accepted in rounds(hits, gamma):
            drafted = min(accepted + 1, gamma, len(hits) - start)
            for depth in range(drafted):
                total[depth] += 1
                right[depth] += depth < accepted
            start += accepted + 1
    shares = [Share(*counts) for counts in zip(right, total, strict=True)]
    return {str(depth): share.to_json() for depth, share in enumerate(shares, start=1)}
