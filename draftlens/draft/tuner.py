"""Chooses the draft tree while it drafts, from what checking costs here and how often guesses are
right here."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from draftlens.core.tree import EAGLE_PATHS, Topology, chain, from_paths
from draftlens.draft.hit_rates import HitRates
from draftlens.ops.tree_search import best_tree, tokens_a_second

MAX_NODES = 48
MEMORY = 24
"""Latest timings kept of each kind: a machine's speed changes."""
AGAIN = 8
"""Rounds between two choices."""
LOOK = 24
"""Rounds between two looks at what the chosen tree does not show; behind a dear one as many times
more as it costs."""
LONGEST = 8
"""Most times that a pause between looks is as long: what was dear once may be cheap by now."""
BETTER = 1.02
"""How much more another tree must promise: each new one costs something, and promises are
uncertain."""

WIDE = from_paths(EAGLE_PATHS)
"""Shows how often guesses of every rank are right."""
EXPLORE = 2 * (WIDE, chain(3), chain(1), chain(6))
"""The first rounds: each size twice, since its first time does not count."""
LOOKS = (WIDE, chain(3), WIDE, chain(1), WIDE, chain(6))
"""Looks, in turn: a size that was slow once, by accident, gets another chance."""


def tuner_of(target: Any, key: object, rows: int, length: int) -> TreeTuner:
    """The tuner of a target and whatever drafts for it: a later answer begins with what an earlier
    one measured.

    How often guesses are right is one record for all its answers. What a round costs depends on how
    much there is to read, so each number of rows and each doubling of the prompt's length has a
    tuner of its own.

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

    It begins with trees that show costs and ranks, then takes the tree of most expected tokens a
    second. What it chooses can change how long an answer takes, never what it says.

    Args:
        rates: how often guesses are right, shared with tuners of the same draft.
    """

    limit = chain(MAX_NODES)
    """As large as any tree that it chooses: caches are sized by it."""

    def __init__(self, rates: HitRates) -> None:
        self.rates, self.costs, self.rounds = rates, Costs(), 0
        self._chosen, self._tried, self._looked = WIDE, 0, 0
        self._choose_at, self._look_at = 0, len(EXPLORE) + LOOK

    def tree(self) -> Topology:
        """The tree of the next round."""
        with self.rates.lock:
            if self._tried < len(EXPLORE):
                self._tried += 1
                return EXPLORE[self._tried - 1]
            if self.rounds >= self._look_at:
                return self._look()
            if self.rounds >= self._choose_at:
                self._choose()
            return self._chosen

    def _look(self) -> Topology:
        look, seconds = LOOKS[self._looked % len(LOOKS)], self.costs.verify()
        dear = self._takes(look, seconds) / self._takes(self._chosen, seconds)
        self._looked += 1
        self._look_at = self.rounds + LOOK * min(max(1, round(dear)), LONGEST)
        return look

    def _takes(self, topology: Topology, seconds: Callable[[int], float]) -> float:
        return seconds(len(topology)) + topology.depth * self.costs.draft

    def _choose(self) -> None:
        known = self.rates.chances(), self.costs.verify(), self.costs.draft
        best, promised = best_tree(*known, MAX_NODES)
        if promised > BETTER * tokens_a_second(self._chosen, *known):
            self._chosen = best
        self._choose_at = self.rounds + AGAIN

    def drafted(self, topology: Topology, seconds: float) -> None:
        """A tree was grown in so many seconds."""
        with self.rates.lock:
            self.costs.drafted(topology.depth, seconds)

    def judged(self, topology: Topology, paths: Sequence[Sequence[int]], seconds: float) -> None:
        """A tree was checked in so many seconds, and of each running row this path was right."""
        with self.rates.lock:
            self.rounds += 1
            self.costs.checked(len(topology), seconds)
            for path in paths:
                self.rates.count(topology, path)


class Costs:
    """What rounds cost, in seconds. Of several timings the lower quartile counts: what is slow is
    so by accident."""

    def __init__(self) -> None:
        self._checks: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self._levels: deque[float] = deque(maxlen=MEMORY)
        self._sizes = set[int]()

    def drafted(self, depth: int, seconds: float) -> None:
        """A tree of this depth was grown."""
        if depth:
            self._levels.append(seconds / depth)

    def checked(self, nodes: int, seconds: float) -> None:
        """So many guesses were checked. The first time of each size does not count: plans are made
        and kernels chosen then.
        """
        if nodes in self._sizes:
            self._checks[nodes].append(seconds)
        self._sizes.add(nodes)

    @property
    def sizes(self) -> list[int]:
        """Numbers of guesses whose check has been measured."""
        return sorted(self._checks)

    @property
    def draft(self) -> float:
        """One draft forward."""
        return _usual(self._levels) if self._levels else 0.0

    def verify(self) -> Callable[[int], float]:
        """A check, by its number of guesses: what was measured, and straight lines between and
        beyond.

        No size is thought dearer than a larger one.
        """
        known, least = list[tuple[int, float]](), inf
        for nodes in reversed(self.sizes):
            least = min(least, _usual(self._checks[nodes]))
            known.insert(0, (nodes, least))
        if len(known) < 2:
            return lambda nodes: known[0][1] if known else 1.0

        def seconds(nodes: int) -> float:
            at = min(max(bisect_left(known, (nodes, 0.0)), 1), len(known) - 1)
            (left, low), (right, high) = known[at - 1], known[at]
            return max(1e-9, low + (high - low) / (right - left) * (nodes - left))

        return seconds


def _usual(times: Iterable[float]) -> float:
    ordered = sorted(times)
    return ordered[(len(ordered) - 1) // 4]


Tuners = Callable[[int, int], TreeTuner]
"""From rows and tokens of a prompt to the tuner of answers to it."""

_KNOWN: weakref.WeakKeyDictionary[
    Any, dict[object, tuple[HitRates, dict[tuple[int, int], TreeTuner]]]
]
_KNOWN = weakref.WeakKeyDictionary()
