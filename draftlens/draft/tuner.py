"""Chooses the draft tree while it drafts, from what checking costs here and how often guesses are right here."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from draftlens.ops.tree import EAGLE_PATHS, chain, from_paths
from draftlens.ops.tree_search import best_tree, tokens_a_second
from draftlens.types import ROOT, Topology

MAX_NODES = 48
MAX_DEPTH = 8
RANKS = 4
PRIOR = (0.7, 0.1, 0.04, 0.02)
"""Chances by rank before anything is known; they weigh as much as WEIGHT rounds."""
WEIGHT = 4
MEMORY = 24
"""Latest timings kept of each kind: a machine's speed changes."""
AGAIN = 8
"""Rounds between two choices."""
LOOK = 24
"""Rounds between two looks at ranks that the chosen tree does not try."""
BETTER = 1.02
"""How much more another tree must promise: each new one costs something, and promises are uncertain."""


def tuner_of(target: Any, key: object) -> TreeTuner:
    """The tuner of a target and whatever drafts for it: a later answer begins with what an earlier one measured."""
    return _KNOWN.setdefault(target, {}).setdefault(key, TreeTuner())


class TreeTuner:
    """Measures rounds and says which tree the next one should have.

    It begins with trees that show costs and ranks, then takes the tree of most expected tokens a second. What it
    chooses can change how long an answer takes, never what it says.
    """

    limit = chain(MAX_NODES)
    """As large as any tree that it chooses: caches are sized by it."""

    def __init__(self) -> None:
        eagle = from_paths(EAGLE_PATHS)
        self._explore = 2 * [eagle, chain(3), chain(1), chain(6)]
        self._chosen, self.rounds = eagle, 0
        self.trials: dict[tuple[int, int, int], int] = defaultdict(int)
        self.hits: dict[tuple[int, int, int], int] = defaultdict(int)
        self.verify: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self.level: deque[float] = deque(maxlen=MEMORY)
        self._sizes = set[int]()

    def tree(self) -> Topology:
        """The tree of the next round."""
        if self.rounds < len(self._explore):
            return self._explore[self.rounds]
        if self.rounds % LOOK == 0:
            return self._explore[0]
        if self.rounds % AGAIN == 1 or self.rounds == len(self._explore):
            self._choose()
        return self._chosen

    def _choose(self) -> None:
        known = self.chances(), self.verify_costs(), median(self.level) if self.level else 0.0
        best, promised = best_tree(*known, MAX_NODES)
        if promised > BETTER * tokens_a_second(self._chosen, *known):
            self._chosen = best

    def drafted(self, topology: Topology, seconds: float) -> None:
        """A tree was grown in so many seconds."""
        if topology.depth:
            self.level.append(seconds / topology.depth)

    def judged(self, topology: Topology, paths: Sequence[Sequence[int]], seconds: float) -> None:
        """A tree was checked in so many seconds, and of each running row this path was right.

        The first time of each size does not count: plans are made and kernels chosen then.
        """
        self.rounds += 1
        if len(topology) in self._sizes:
            self.verify[len(topology)].append(seconds)
        self._sizes.add(len(topology))
        for path in paths:
            parent, other = ROOT, 0
            for depth in range(min(len(path) + 1, MAX_DEPTH, topology.depth)):
                children = topology.children.get(parent, ())
                parent = path[depth] if depth < len(path) else ROOT
                for rank, child in enumerate(children[:RANKS]):
                    self.trials[other, depth, rank] += 1
                    self.hits[other, depth, rank] += child == parent
                other = int(parent not in children[:1])

    def chances(self) -> list[list[list[float]]]:
        """Chances that guesses are right (`ops.tree_search.Chances`), evened out where little was seen.

        Behind a second choice the next guess is another matter: what was hard to foresee has just been settled.
        """
        usual = self._pooled(0, PRIOR)
        return [self._evened(other, pooled) for other, pooled in enumerate((usual, self._pooled(1, usual)))]

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

    def verify_seconds(self, nodes: int) -> float:
        """Seconds to check so many guesses, by what was measured so far."""
        return self.verify_costs()(nodes)

    def verify_costs(self) -> Callable[[int], float]:
        """`verify_seconds` for many calls: medians of what was measured, and straight lines between and beyond."""
        known = sorted((nodes, median(times)) for nodes, times in self.verify.items())
        if len(known) < 2:
            return lambda nodes: known[0][1] if known else 1.0

        def seconds(nodes: int) -> float:
            at = min(max(bisect_left(known, (nodes, 0.0)), 1), len(known) - 1)
            (left, low), (right, high) = known[at - 1], known[at]
            slope = max(0.0, (high - low) / (right - left))
            return max(1e-9, low + slope * (nodes - left))

        return seconds


def _even(hits: int, trials: int, prior: float) -> float:
    """A share, with a prior that weighs as much as WEIGHT trials."""
    return (hits + WEIGHT * prior) / (trials + WEIGHT)


_KNOWN: weakref.WeakKeyDictionary[Any, dict[object, TreeTuner]] = weakref.WeakKeyDictionary()
