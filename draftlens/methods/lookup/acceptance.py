"""How often what follows a match was right, and how many guesses are therefore worth checking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any

from draftlens.core.tree import ROOT
from draftlens.drafting.adaptive.forward_costs import LiveCosts
from draftlens.methods.lookup.prefix_tree import PrefixTree

PRIOR_WEIGHT = 2.0
"""Judged guesses that the chances assumed beforehand count as."""

FORGETTING = 0.92
"""Weight of a judged continuation compared with the next one: about the last dozen of them count."""

MAX_AGREEMENT = 16
"""Agreements from this length on are counted together."""

OTHER_CHOICE = 0.3
"""Chance, before any was judged, that the second choice is right where the first is wrong."""


class Kind(Enum):
    """Why a candidate is proposed."""

    MATCH = "match"
    """The last tokens of the answer occur in front of it."""
    RECOVERY = "recovery"
    """A text that the answer has just left may go on with it."""
    HEAD = "head"
    """A text begins with it, or the answer ends."""


@dataclass(frozen=True)
class Evidence:
    """What the chances of a candidate's tokens depend on.

    Args:
        agreement: tokens of the match in front of it.
        kind: why it is proposed.
        boundary: tokens behind which it goes on with the head of another text; None for never.
    """

    agreement: int
    kind: Kind = Kind.MATCH
    boundary: int | None = None

    def at(self, depth: int) -> tuple[Kind, int]:
        """Kind and agreement of the token behind `depth` right ones."""
        if self.boundary is not None and depth >= self.boundary:
            return Kind.HEAD, depth - self.boundary
        return self.kind, self.agreement + depth


class MatchRates:
    """How often a token behind a match of m tokens was the right one.

    An accepted continuation makes the match of the next one longer by one, so the chances of a whole
    candidate follow from those of single tokens. Guesses count that were not checked, too: the
    answer shows whether they would have been right, so a length that does not pay now can be found
    to pay again without trying it.
    """

    def __init__(self) -> None:
        lengths = range(MAX_AGREEMENT + 1)
        self._chances = {kind: [_prior(kind, length) for length in lengths] for kind in Kind}
        self._weights = {kind: [PRIOR_WEIGHT for _ in lengths] for kind in Kind}
        self._other = OTHER_CHOICE
        self._other_weight = PRIOR_WEIGHT

    def chance(self, agreement: int, kind: Kind = Kind.MATCH) -> float:
        """That the token behind a match of so many tokens is right."""
        return self._chances[kind][min(agreement, MAX_AGREEMENT)]

    def node_chances(self, tree: PrefixTree, evidence: Sequence[Evidence]) -> list[float]:
        """Of each node, the chance that it is accepted.

        Args:
            tree: candidates, merged.
            evidence: of each candidate.
        """
        topology = tree.topology
        chances = [0.0] * len(tree)
        for parent, children in topology.children.items():
            reached = 1.0 if parent == ROOT else chances[parent]
            depth = 0 if parent == ROOT else topology.depths[parent]
            kind, agreement = evidence[tree.origins[children[0]]].at(depth)
            first = self.chance(agreement, kind)
            chances[children[0]] = reached * first
            left = reached * (1 - first)
            for child in children[1:]:
                chances[child] = left * self._other
                left *= 1 - self._other
        return chances

    def count(self, tree: PrefixTree, evidence: Sequence[Evidence], emitted: Sequence[int]) -> int:
        """Learn from the tokens that came where a tree was guessed, whether it was checked or not.

        Args:
            tree, evidence: as for `node_chances`.
            emitted: the tokens of the row in this round.

        Returns:
            How many of these tokens were guessed.
        """
        node = ROOT
        for depth, token in enumerate(emitted):
            children = tree.topology.children.get(node)
            if children is None:
                return depth
            guesses = [tree.tokens[child] for child in children]
            kind, agreement = evidence[tree.origins[children[0]]].at(depth)
            self._count_first(kind, agreement, is_correct=guesses[0] == token)
            if guesses[0] != token and len(guesses) > 1:
                self._count_other(is_correct=token in guesses[1:])
            if token not in guesses:
                return depth
            node = children[guesses.index(token)]
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
    """0.2 behind a match of one token, 0.67 behind three, 0.91 behind sixteen. A place that is
    found by its surroundings is as good as a match of `PRIOR_AGREEMENTS` tokens."""
    agreement += PRIOR_AGREEMENTS[kind]
    return 1 - 0.8 / math.pow(max(agreement, 1), 0.8)


PRIOR_AGREEMENTS = {Kind.MATCH: 0, Kind.RECOVERY: 2, Kind.HEAD: 1}


class DraftBudget:
    """How many guesses of each row are worth checking, by what a forward costs.

    Args:
        costs: of the target. They learn from every round.
        lock: held while the costs are used.
        most: guesses of a row.
    """

    def __init__(self, costs: LiveCosts, lock: AbstractContextManager[Any], most: int) -> None:
        self.costs = costs
        self.lock = lock
        self.most = most

    def width(self, chances: Sequence[Sequence[float]], rows: int, context: int) -> int:
        """The number of guesses for each row at which tokens are made fastest; 0 where none pays.

        All rows are as wide as the widest of them, so a continuation that is useful in one row only has
        the cost of a column.

        Args:
            chances: of each running row, those of its guesses.
            rows: of the batch, those that have ended included.
            context: cached tokens of the longest row.
        """
        ranked = [sorted(values, reverse=True) for values in chances]
        sums = [list(accumulate(values, initial=0.0)) for values in ranked]
        longest = max(map(len, ranked), default=0)
        with self.lock:
            most = min(longest, self.most, self.costs.largest // rows - 1)
            best = 0
            best_rate = len(ranked) / self.costs.cost(rows, rows, context)
            for width in range(1, most + 1):
                gained = sum(total[min(width, len(total) - 1)] for total in sums)
                seconds = self.costs.cost(rows * (width + 1), rows, context)
                rate = (len(ranked) + gained) / seconds
                if rate > best_rate:
                    best, best_rate = width, rate
        return best

    def record(self, width: int, rows: int, context: int, seconds: float) -> None:
        """Learn from the time of a check.

        Args:
            width: guesses of the widest row.
            rows: of the batch.
            context: cached tokens of the longest row before it.
            seconds: it took.
        """
        with self.lock:
            tokens = rows * (width + 1)
            self.costs.record(tokens, self.costs.curve.cost(tokens, rows, context), seconds)


def likeliest(chances: Sequence[float], number: int) -> list[int]:
    """The `number` nodes with the best chances; with each of them, its parent."""
    order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
    return order[:number]
