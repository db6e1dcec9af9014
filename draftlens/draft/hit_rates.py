"""How often a draft's guesses are right, by depth and rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from threading import Lock

from draftlens.core.tree import ROOT, Topology

MAX_DEPTH = 8
RANKS = 4
PRIOR = (0.7, 0.1, 0.04, 0.02)
"""Chances by rank before anything is known; they weigh as much as WEIGHT rounds."""
WEIGHT = 4
MOST = 1000
"""First guesses that are remembered: beyond, all counts are halved, for tasks change."""

Key = tuple[int, int, int]
"""(whether the guess before was another than the first choice, depth, rank)"""


class HitRates:
    """Counts trials and hits of guesses, and evens them out to chances.

    Attributes:
        lock: for those who share it; answers may be made side by side.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.trials, self.hits = Counter[Key](), Counter[Key]()

    def count(self, topology: Topology, path: Sequence[int]) -> None:
        """One row's tree was checked, and this path was right.

        Only guesses behind right ones count, and those of the first depth where none was right.
        """
        parent, other = ROOT, 0
        for depth in range(min(len(path) + 1, MAX_DEPTH, topology.depth)):
            children = topology.children.get(parent, ())
            parent = path[depth] if depth < len(path) else ROOT
            for rank, child in enumerate(children[:RANKS]):
                self.trials[other, depth, rank] += 1
                self.hits[other, depth, rank] += child == parent
            other = int(parent not in children[:1])
        if self.trials[0, 0, 0] > MOST:
            self.trials, self.hits = _half(self.trials), _half(self.hits)

    def chances(self) -> list[list[list[float]]]:
        """Chances that guesses are right (`ops.tree_search.Chances`), evened out where little was
        seen.

        Behind a second choice the next guess is another matter: what was hard to foresee has just
            been settled.
        """
        usual = self._pooled(0, PRIOR)
        return [
            self._evened(other, pooled)
            for other, pooled in enumerate((usual, self._pooled(1, usual)))
        ]

    def _pooled(self, other: int, prior: Sequence[float]) -> list[float]:
        """Chances by rank, all depths together."""
        pooled = []
        for rank in range(RANKS):
            keys = [(other, depth, rank) for depth in range(MAX_DEPTH)]
            hits, trials = (sum(table[key] for key in keys) for table in (self.hits, self.trials))
            pooled.append(_even(hits, trials, prior[rank]))
        return pooled

    def _evened(self, other: int, pooled: Sequence[float]) -> list[list[float]]:
        table = []
        for depth in range(MAX_DEPTH):
            row: list[float] = []
            for rank in range(RANKS):
                key = other, depth, rank
                chance = _even(self.hits[key], self.trials[key], pooled[rank])
                row.append(min([chance, *row]))  # a worse rank is never the likelier one
            table.append(row)
        return table


def _even(hits: int, trials: int, prior: float) -> float:
    """A share, with a prior that weighs as much as WEIGHT trials."""
    return (hits + WEIGHT * prior) / (trials + WEIGHT)


def _half(table: Counter[Key]) -> Counter[Key]:
    return Counter({key: value // 2 for key, value in table.items()})
