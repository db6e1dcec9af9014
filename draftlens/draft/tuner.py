"""Chooses the draft tree of each round while drafting.

The choice follows from two measurements of the rounds so far: what drafting and verifying cost, and
how often draft tokens are correct.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from draftlens.core.tree import EAGLE_PATHS, Topology, chain, from_paths
from draftlens.draft.hit_rates import HitRates
from draftlens.ops.tree_search import best_tree, tokens_per_second

MAX_NODES = 48
"""Number of nodes of the largest tree."""
TIMING_WINDOW = 24
"""Number of latest timings of each kind that count, because the speed of a machine changes."""
REPLAN_EVERY = 8
"""Rounds between two choices of the best tree."""
EXPLORE_EVERY = 24
"""Rounds between two explorations, times the backoff of the explored tree."""
MAX_BACKOFF = 8
"""A tree that costs n times as much as the chosen one is followed by a pause n times as long, up to
this factor: a tree that was expensive once may be cheap later."""
MIN_GAIN = 1.02
"""Factor by which another tree must be faster to replace the chosen one: a change has a cost and
the estimate is uncertain."""

WIDE_TREE = from_paths(EAGLE_PATHS)
"""Measures how often draft tokens of every rank are correct."""
WARMUP_TREES = 2 * (WIDE_TREE, chain(3), chain(1), chain(6))
"""Trees of the first rounds. Each size comes twice, since its first timing does not count."""
EXPLORE_TREES = (WIDE_TREE, chain(3), WIDE_TREE, chain(1), WIDE_TREE, chain(6))
"""Trees of explorations, in turn. A size that was slow once by accident is measured again."""


class CheckTime(NamedTuple):
    """How long the target takes to verify a number of draft tokens."""

    num_nodes: int
    seconds: float


class Costs:
    """Seconds that the parts of a round take.

    The estimate is the lower quartile of the latest timings, since slow timings are often
    accidents.
    """

    def __init__(self) -> None:
        self._checks: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TIMING_WINDOW))
        self._steps: deque[float] = deque(maxlen=TIMING_WINDOW)
        self._started_sizes: set[int] = set()

    def record_draft(self, depth: int, seconds: float) -> None:
        """Record that a tree of this depth was drafted."""
        if depth:
            self._steps.append(seconds / depth)

    def record_check(self, num_nodes: int, seconds: float) -> None:
        """Record that this number of draft tokens was verified.

        The first timing of each size does not count, since it includes the time to plan and to
        choose kernels.
        """
        if num_nodes in self._started_sizes:
            self._checks[num_nodes].append(seconds)
        self._started_sizes.add(num_nodes)

    @property
    def sizes(self) -> list[int]:
        """Measured numbers of draft tokens in a verification, in rising order."""
        return sorted(self._checks)

    @property
    def draft_seconds(self) -> float:
        """Seconds of one draft forward; 0 before the first timing."""
        return _lower_quartile(self._steps) if self._steps else 0.0

    def verify_seconds(self) -> Callable[[int], float]:
        """The seconds of a verification as a function of its number of draft tokens.

        The function is linear between the measured sizes and continues the outer lines beyond them.
        With one measured size it is constant; with none it returns 1.
        """
        points = self._check_times()
        if len(points) < 2:
            constant = points[0].seconds if points else 1.0
            return lambda num_nodes: constant
        sizes = [point.num_nodes for point in points]

        def interpolate(num_nodes: int) -> float:
            index = min(max(bisect_left(sizes, num_nodes), 1), len(sizes) - 1)
            left = points[index - 1]
            right = points[index]
            slope = (right.seconds - left.seconds) / (right.num_nodes - left.num_nodes)
            return max(1e-9, left.seconds + slope * (num_nodes - left.num_nodes))

        return interpolate

    def _check_times(self) -> list[CheckTime]:
        """Time of each measured size, in rising order; no size takes longer than a larger one."""
        points = []
        shortest = inf
        for num_nodes in reversed(self.sizes):
            shortest = min(shortest, _lower_quartile(self._checks[num_nodes]))
            points.append(CheckTime(num_nodes, shortest))
        points.reverse()
        return points


class TreeTuner:
    """Measures rounds and chooses the tree of the next one.

    The first rounds use trees that measure costs and hit rates. Later rounds use the tree with the
    highest expected tokens per second, and from time to time one that keeps the measurements up to
    date. The choice changes how long an answer takes, never its tokens.

    A tuner may be shared by answers that are generated at the same time.

    Args:
        rates: how often draft tokens are correct, shared with the other tuners of the same draft.

    Attributes:
        rates: as given.
        costs: seconds of drafting and verifying.
        rounds: number of verified rounds.
    """

    limit = chain(MAX_NODES)
    """At least as large as any chosen tree; caches are sized by it."""

    def __init__(self, rates: HitRates) -> None:
        self.rates = rates
        self.costs = Costs()
        self.rounds = 0
        self._best_tree = WIDE_TREE
        self._num_warmups = 0
        self._num_explorations = 0
        self._replan_at = 0
        self._explore_at = len(WARMUP_TREES) + EXPLORE_EVERY

    def tree(self) -> Topology:
        """The tree of the next round."""
        with self.rates.lock:
            if self._num_warmups < len(WARMUP_TREES):
                tree = WARMUP_TREES[self._num_warmups]
                self._num_warmups += 1
                return tree
            if self.rounds >= self._explore_at:
                return self._explore()
            if self.rounds >= self._replan_at:
                self._replan()
            return self._best_tree

    def drafted(self, topology: Topology, seconds: float) -> None:
        """Record that a tree was drafted in this time."""
        with self.rates.lock:
            self.costs.record_draft(topology.depth, seconds)

    def judged(self, topology: Topology, paths: Sequence[Sequence[int]], seconds: float) -> None:
        """Record that a tree was verified in this time.

        Args:
            topology: the tree.
            paths: correct nodes of each running row.
            seconds: seconds of the verification.
        """
        with self.rates.lock:
            self.rounds += 1
            self.costs.record_check(len(topology), seconds)
            for path in paths:
                self.rates.count(topology, path)

    def _explore(self) -> Topology:
        """The next tree to measure; schedules the exploration after it."""
        tree = EXPLORE_TREES[self._num_explorations % len(EXPLORE_TREES)]
        self._num_explorations += 1
        relative_cost = self._round_seconds(tree) / self._round_seconds(self._best_tree)
        backoff = min(max(1, round(relative_cost)), MAX_BACKOFF)
        self._explore_at = self.rounds + EXPLORE_EVERY * backoff
        return tree

    def _round_seconds(self, topology: Topology) -> float:
        """Expected seconds to draft and verify a tree."""
        verify_seconds = self.costs.verify_seconds()
        return verify_seconds(len(topology)) + topology.depth * self.costs.draft_seconds

    def _replan(self) -> None:
        """Choose the best tree by the measurements so far, and schedule the next choice."""
        chances = self.rates.chances()
        verify_seconds = self.costs.verify_seconds()
        draft_seconds = self.costs.draft_seconds
        plan = best_tree(chances, verify_seconds, draft_seconds, MAX_NODES)
        rate = tokens_per_second(self._best_tree, chances, verify_seconds, draft_seconds)
        if plan.tokens_per_second > MIN_GAIN * rate:
            self._best_tree = plan.topology
        self._replan_at = self.rounds + REPLAN_EVERY


Tuners = Callable[[int, int], TreeTuner]
"""Maps the number of rows and the length of a prompt to the tuner of its answers."""


@dataclass(frozen=True)
class _Record:
    """The tuners of a target with one draft and one set of settings.

    Attributes:
        rates: how often draft tokens are correct, for all prompts.
        tuners: by number of rows and bit length of the prompt's length.
    """

    rates: HitRates = field(default_factory=HitRates)
    tuners: dict[tuple[int, int], TreeTuner] = field(default_factory=dict)


# By target model, draft model and settings. Both models are weak keys, so that a record ends with
# its models and a new model never inherits the record of an old one.
_RECORDS: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, dict[Hashable, _Record]]]
_RECORDS = weakref.WeakKeyDictionary()


def tuner_of(
    target_model: Any,
    draft_model: Any,
    settings: Hashable,
    num_rows: int,
    prompt_length: int,
) -> TreeTuner:
    """The tuner of a target and its draft, which keeps the measurements of earlier answers.

    Hit rates are shared by all prompts. The cost of a round depends on how much context there is,
    so each number of rows and each power of two of the prompt's length has its own tuner.

    Args:
        target_model: the model that verifies; only weakly referenced.
        draft_model: the model that drafts, `target_model` itself for self-drafting; only weakly
            referenced.
        settings: all other values that change which tokens are drafted.
        num_rows: number of rows of the batch.
        prompt_length: number of tokens of the prompt, visual tokens included.
    """
    by_draft = _RECORDS.setdefault(target_model, weakref.WeakKeyDictionary())
    by_settings = by_draft.setdefault(draft_model, {})
    record = by_settings.setdefault(settings, _Record())
    key = (num_rows, prompt_length.bit_length())
    return record.tuners.setdefault(key, TreeTuner(record.rates))


def _lower_quartile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4]
