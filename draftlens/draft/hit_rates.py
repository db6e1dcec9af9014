"""How often draft tokens are correct, by depth and rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from threading import Lock

from draftlens.core.tree import ROOT, Topology

MAX_DEPTH = 8
RANKS = 4
PRIOR = (0.7, 0.1, 0.04, 0.02)
"""Chances by rank before anything is measured."""
PRIOR_WEIGHT = 4
"""Number of trials that a prior counts for."""
MAX_TRIALS = 1000
"""All counts are halved beyond this number of first draft tokens, because tasks change."""

Key = tuple[int, int, int]
"""(branch, depth, rank); the branch is 1 where the token before was not the draft's first choice,
else 0."""


class HitRates:
    """Counts trials and hits of draft tokens and turns them into chances.

    Attributes:
        lock: to be held while the counts are used; several answers may share them at a time.
        trials: verified draft tokens by (branch, depth, rank).
        hits: correct draft tokens by (branch, depth, rank).
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.trials: Counter[Key] = Counter()
        self.hits: Counter[Key] = Counter()

    def count(self, topology: Topology, path: Sequence[int]) -> None:
        """Count the result of one row's verification.

        Only the children of correct nodes count, and those of the root.

        Args:
            topology: the verified tree.
            path: its correct nodes, from the first level down; empty if none is correct.
        """
        parent = ROOT
        branch = 0
        for depth in range(min(len(path) + 1, MAX_DEPTH, topology.depth)):
            children = topology.children.get(parent, ())
            correct = path[depth] if depth < len(path) else ROOT
            for rank, child in enumerate(children[:RANKS]):
                self.trials[branch, depth, rank] += 1
                if child == correct:
                    self.hits[branch, depth, rank] += 1
            is_first_choice = correct in children[:1]
            branch = 0 if is_first_choice else 1
            parent = correct
        if self.trials[0, 0, 0] > MAX_TRIALS:
            self.trials = _halve(self.trials)
            self.hits = _halve(self.hits)

    def chances(self) -> list[list[list[float]]]:
        """Chances that draft tokens are correct (`ops.tree_search.Chances`), smoothed where there
        are few trials.

        Tokens after a second choice have a table of their own: the token that was hard to predict
        is settled there, so the next one is often easier.
        """
        after_first = self._pooled_chances(0, PRIOR)
        after_other = self._pooled_chances(1, after_first)
        return [self._chance_table(0, after_first), self._chance_table(1, after_other)]

    def _pooled_chances(self, branch: int, prior: Sequence[float]) -> list[float]:
        """Chances by rank, all depths together."""
        pooled = []
        for rank in range(RANKS):
            hits = sum(self.hits[branch, depth, rank] for depth in range(MAX_DEPTH))
            trials = sum(self.trials[branch, depth, rank] for depth in range(MAX_DEPTH))
            pooled.append(_smoothed_share(hits, trials, prior[rank]))
        return pooled

    def _chance_table(self, branch: int, prior: Sequence[float]) -> list[list[float]]:
        """Chances by depth and rank; they never rise with the rank."""
        table = []
        for depth in range(MAX_DEPTH):
            row: list[float] = []
            for rank in range(RANKS):
                key = (branch, depth, rank)
                chance = _smoothed_share(self.hits[key], self.trials[key], prior[rank])
                row.append(min([chance, *row]))
            table.append(row)
        return table


def _smoothed_share(hits: int, trials: int, prior: float) -> float:
    """The share of hits, with a prior that counts for `PRIOR_WEIGHT` trials."""
    return (hits + PRIOR_WEIGHT * prior) / (trials + PRIOR_WEIGHT)


def _halve(counts: Counter[Key]) -> Counter[Key]:
    return Counter({key: count // 2 for key, count in counts.items()})
