"""Chooses the draft tree while it drafts, from what checking costs here and how often guesses are right here."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from draftlens.draft.hit_rates import HitRates
from draftlens.ops.tree import EAGLE_PATHS, chain, from_paths
from draftlens.ops.tree_search import best_tree, tokens_a_second
from draftlens.types import Topology

MAX_NODES = 48
MEMORY = 24
"""Latest timings kept of each kind: a machine's speed changes."""
AGAIN = 8
"""Rounds between two choices."""
LOOK = 24
"""Rounds between two looks at ranks that the chosen tree does not try."""
BETTER = 1.02
"""How much more another tree must promise: each new one costs something, and promises are uncertain."""


def tuner_of(target: Any, key: object, rows: int, length: int) -> TreeTuner:
    """The tuner of a target and whatever drafts for it: a later answer begins with what an earlier one measured.

    How often guesses are right is one record for all its answers. What a round costs depends on how much there is to
    read, so each number of rows and each doubling of the prompt's length has a tuner of its own.

    Args:
        target: the model that checks.
        key: the draft, and whatever else decides what it guesses.
        rows: rows of the batch.
        length: tokens of the prompt, visual ones included.
    """
    record, tuners = _KNOWN.setdefault(target, {}).setdefault(key, (HitRates(), {}))
    return tuners.setdefault((rows, length.bit_length()), TreeTuner(record))


class TreeTuner:
    """Measures rounds and says which tree the next one should have.

    It begins with trees that show costs and ranks, then takes the tree of most expected tokens a second. What it
    chooses can change how long an answer takes, never what it says.

    Args:
        rates: how often guesses are right, shared with tuners of the same draft.
    """

    limit = chain(MAX_NODES)
    """As large as any tree that it chooses: caches are sized by it."""

    def __init__(self, rates: HitRates) -> None:
        eagle = from_paths(EAGLE_PATHS)
        self._explore = 2 * [eagle, chain(3), chain(1), chain(6)]
        self._chosen, self.rounds, self.rates = eagle, 0, rates
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
        known = self.rates.chances(), self.verify_costs(), median(self.level) if self.level else 0.0
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
            self.rates.count(topology, path)

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


Tuners = Callable[[int, int], TreeTuner]
"""From rows and tokens of a prompt to the tuner of answers to it."""

_KNOWN: weakref.WeakKeyDictionary[Any, dict[object, tuple[HitRates, dict[tuple[int, int], TreeTuner]]]]
_KNOWN = weakref.WeakKeyDictionary()
