"""Acceptance rates after matches, and the number of draft tokens worth verifying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

from draftlens.core.tree import ROOT
from draftlens.drafting.adaptive.costs import Expectation, ForwardCosts
from draftlens.methods.lookup.candidates import Candidate, Kind, PrefixTree

PRIOR_WEIGHT = 2.0  # Observations that the prior counts as.
FORGETTING = 0.92  # Weight of an observation relative to the next one: about the last dozen count.
MAX_AGREEMENT = 16  # Larger agreements are counted together.
OTHER_CHOICE = 0.3  # Prior probability that the second choice is accepted where the first is not.


class MatchRates:
    """Probability that the token after a match of m tokens is accepted.

    An accepted token extends the match of the next one, so these rates give those of a candidate.
    Unverified draft tokens count too, by comparison with the answer, so a length can be found to
    pay again without trying it.
    """

    def __init__(self) -> None:
        lengths = range(MAX_AGREEMENT + 1)
        self._chances = {kind: [_prior(kind, length) for length in lengths] for kind in Kind}
        self._weights = {kind: [PRIOR_WEIGHT for _ in lengths] for kind in Kind}
        self._other = OTHER_CHOICE
        self._other_weight = PRIOR_WEIGHT

    def chance(self, agreement: int, kind: Kind = Kind.MATCH) -> float:
        return self._chances[kind][min(agreement, MAX_AGREEMENT)]

    def node_chances(self, tree: PrefixTree, candidates: Sequence[Candidate]) -> list[float]:
        """Acceptance probability of each node; `PrefixTree.origins` indexes `candidates`."""
        topology = tree.topology
        chances = [0.0] * len(tree)
        for parent, children in topology.children.items():
            reached = 1.0 if parent == ROOT else chances[parent]
            depth = 0 if parent == ROOT else topology.depths[parent]
            kind, agreement = candidates[tree.origins[children[0]]].evidence_at(depth)
            first = self.chance(agreement, kind)
            chances[children[0]] = reached * first
            remaining = reached * (1 - first)
            for child in children[1:]:
                chances[child] = remaining * self._other
                remaining *= 1 - self._other
        return chances

    def chances(self, candidate: Candidate) -> list[float]:
        """Acceptance probability of each token of a candidate."""
        evidence = map(candidate.evidence_at, range(len(candidate.tokens)))
        rates = (self.chance(agreement, kind) for kind, agreement in evidence)
        return list(accumulate(rates, lambda reached, rate: reached * rate))

    def count(
        self, tree: PrefixTree, candidates: Sequence[Candidate], emitted: Sequence[int]
    ) -> int:
        """Update the rates by a round's tokens; returns how many of these were in the tree."""
        node = ROOT
        for depth, token in enumerate(emitted):
            children = tree.topology.children.get(node)
            if children is None:
                return depth
            drafted = [tree.tokens[child] for child in children]
            kind, agreement = candidates[tree.origins[children[0]]].evidence_at(depth)
            self._count_first(kind, agreement, is_correct=drafted[0] == token)
            if drafted[0] != token and len(drafted) > 1:
                self._count_other(is_correct=token in drafted[1:])
            if token not in drafted:
                return depth
            node = children[drafted.index(token)]
        return len(emitted)

    def _count_first(self, kind: Kind, agreement: int, is_correct: bool) -> None:
        place = min(agreement, MAX_AGREEMENT)
        chances = self._chances[kind]
        weight = self._weights[kind][place]
        chances[place] += (is_correct - chances[place]) / (weight + 1)
        self._weights[kind][place] = FORGETTING * (weight + 1)

    def _count_other(self, is_correct: bool) -> None:
        self._other += (is_correct - self._other) / (self._other_weight + 1)
        self._other_weight = FORGETTING * (self._other_weight + 1)


def _prior(kind: Kind, agreement: int) -> float:
    """0.2 after a match of one token, 0.67 after three, 0.91 after sixteen."""
    agreement += PRIOR_AGREEMENTS[kind]
    return 1 - 0.8 / math.pow(max(agreement, 1), 0.8)


# Tokens, besides the match, that a candidate of each kind counts for in the prior.
PRIOR_AGREEMENTS = {Kind.MATCH: 0, Kind.RECOVERY: 2, Kind.HEAD: 1, Kind.FORCED: MAX_AGREEMENT}


class DraftBudget:
    """Number of draft tokens per row that minimizes the expected time per token.

    The costs are those of the target's forwards; `lock` is held while they are used or updated.
    """

    def __init__(self, costs: ForwardCosts, lock: AbstractContextManager[Any], most: int) -> None:
        self.costs = costs
        self.lock = lock
        self.most = most

    def best(
        self, chances: Sequence[Sequence[float]], rows: int, context: int
    ) -> tuple[int, Expectation]:
        """Draft tokens per row that maximize tokens per second, 0 where none pays, and the expected
        result of the round.

        Rows are padded to the widest one, so a token that is useful in one row costs a column.
        `chances` belong to the running rows, `rows` counts finished ones too, and `context` is the
        number of cached tokens of the longest row.
        """
        ranked = [sorted(values, reverse=True) for values in chances]
        sums = [list(accumulate(values, initial=0.0)) for values in ranked]
        longest = max(map(len, ranked), default=0)
        with self.lock:
            max_width = max(min(longest, self.most, self.costs.largest // rows - 1), 0)
            tokens = [rows * (width + 1) for width in range(max_width + 1)]
            seconds = self.costs.costs(tokens, rows, context)
        rounds = [Expectation(1.0, seconds[0])]
        for width in range(1, max_width + 1):
            gained = sum(total[min(width, len(total) - 1)] for total in sums)
            rounds.append(Expectation(1 + gained / len(ranked), seconds[width]))
        best = max(range(max_width + 1), key=lambda width: rounds[width].speed())
        return best, rounds[best]

    def record(self, width: int, rows: int, context: int, seconds: float) -> None:
        """Update the costs with the seconds of one verification of `width` draft tokens per row."""
        with self.lock:
            tokens = rows * (width + 1)
            self.costs.record(tokens, self.costs.curve.cost(tokens, rows, context), seconds)


def likeliest_length(chances: Sequence[float], number: int) -> list[int]:
    """The `number` nodes with the best chances; the parent of each is among them."""
    order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
    return order[:number]
