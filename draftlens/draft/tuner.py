"""Chooses the draft tree while it drafts, from what checking costs here and how often guesses are right here."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median
from typing import Any

from draftlens.ops.tree import EAGLE_PATHS, chain, from_paths
from draftlens.ops.tree_search import best_tree
from draftlens.types import ROOT, Topology

MAX_NODES = 48
MAX_DEPTH = 8
RANKS = 4
PRIOR = (0.7, 0.1, 0.04, 0.02)
"""Chances by rank before anything is known; they weigh as much as WEIGHT rounds."""
WEIGHT = 4
MEMORY = 24
"""Latest timings kept of each kind: a machine's speed changes."""
AGAIN = 4
"""Rounds between two choices."""
LOOK = 24
"""Rounds between two looks at ranks that the chosen tree does not try."""


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
        self._explore = [eagle, chain(3), chain(1), eagle, chain(6)]
        self._chosen, self.rounds = eagle, 0
        self.trials: dict[tuple[int, int], int] = defaultdict(int)
        self.hits: dict[tuple[int, int], int] = defaultdict(int)
        self.verify: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self.level: deque[float] = deque(maxlen=MEMORY)

    def tree(self) -> Topology:
        """The tree of the next round."""
        if self.rounds < len(self._explore):
            return self._explore[self.rounds]
        if self.rounds % LOOK == 0:
            return self._explore[0]
        if self.rounds % AGAIN == 1 or self.rounds == len(self._explore):
            draft = median(self.level) if self.level else 0.0
            self._chosen, _ = best_tree(self.chances(), self.verify_seconds, draft, MAX_NODES)
        return self._chosen

    def drafted(self, topology: Topology, seconds: float) -> None:
        """A tree was grown in so many seconds."""
        if topology.depth:
            self.level.append(seconds / topology.depth)

    def judged(self, topology: Topology, paths: Sequence[Sequence[int]], seconds: float) -> None:
        """A tree was checked in so many seconds, and of each running row this path was right."""
        self.rounds += 1
        self.verify[len(topology)].append(seconds)
        for path in paths:
            parent = ROOT
            for depth in range(min(len(path) + 1, MAX_DEPTH, topology.depth)):
                children = topology.children.get(parent, ())
                for rank, child in enumerate(children[:RANKS]):
                    self.trials[depth, rank] += 1
                    self.hits[depth, rank] += depth < len(path) and path[depth] == child
                parent = path[depth] if depth < len(path) else parent

    def chances(self) -> list[list[float]]:
        """Chance by depth and rank that a guess is right: what was seen, evened out where little was seen."""
        pooled = []
        for rank in range(RANKS):
            hits, trials = (sum(table[depth, rank] for depth in range(MAX_DEPTH)) for table in (self.hits, self.trials))
            pooled.append((hits + WEIGHT * PRIOR[rank]) / (trials + WEIGHT))
        table = []
        for depth in range(MAX_DEPTH):
            row: list[float] = []
            for rank in range(RANKS):
                seen = self.hits[depth, rank] + WEIGHT * pooled[rank]
                chance = seen / (self.trials[depth, rank] + WEIGHT)
                row.append(min([chance, *row]))  # a worse rank is never the likelier one
            table.append(row)
        return table

    def verify_seconds(self, nodes: int) -> float:
        """Seconds to check so many guesses: medians of what was measured, and straight lines between and beyond."""
        known = sorted((n, median(times)) for n, times in self.verify.items())
        if not known:
            return 1.0
        if len(known) == 1:
            return known[0][1]
        at = min(max(bisect_left(known, (nodes, 0.0)), 1), len(known) - 1)
        (left, low), (right, high) = known[at - 1], known[at]
        slope = max(0.0, (high - low) / (right - left))
        return max(1e-9, low + slope * (nodes - left))


_KNOWN: weakref.WeakKeyDictionary[Any, dict[object, TreeTuner]] = weakref.WeakKeyDictionary()
