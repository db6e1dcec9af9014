"""How often draft tokens are accepted, by depth and by rank among their siblings."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import sqrt

from draftlens.core.tree import EMPTY, ROOT, Topology, chain, from_paths

MAX_DEPTH = 8
PRIORS = (0.8, 0.4, 0.25, 0.17)
"""Rates by rank before anything is measured; see `AcceptanceRates.ranks`."""
MEMORY = 40.0
"""Draft tokens over which a rate is averaged; older ones fade, because the text changes."""
PRIOR_WEIGHT = 3.0
"""Draft tokens that a prior counts for."""
EARLIER_WEIGHT = 12.0
"""Most draft tokens that earlier answers count for in a new one, and the weight of the rate of all
depths in the rate of one."""


@dataclass
class Rate:
    """A mean that forgets.

    Args:
        mean: of the latest values.
        weight: how many values it stands for.
        memory: the largest weight.
    """

    mean: float
    weight: float
    memory: float = MEMORY

    def add(self, value: float) -> None:
        self.weight = min(self.weight, self.memory - 1) + 1
        self.mean += (value - self.mean) / self.weight


class AcceptanceRates:
    """The rates of one answer, which start from those of an earlier one of the pair.

    Args:
        earlier: the rates of that answer; None for the first.

    Attributes:
        ranks: by rank, how often a draft token is accepted whose parent and none of whose
            siblings of better rank are.
        overall: the rate of first choices over the latest answers.
        trials: first choices that were counted, up to `MEMORY`.
    """

    def __init__(self, earlier: AcceptanceRates | None = None) -> None:
        if earlier is None:
            self.ranks = [Rate(prior, PRIOR_WEIGHT) for prior in PRIORS]
            self.depths = [Rate(0.0, EARLIER_WEIGHT, 10 * MEMORY) for _ in range(MAX_DEPTH)]
            self.overall = Rate(PRIORS[0], PRIOR_WEIGHT, 10 * MEMORY)
            self.trials = 0.0
            return
        self.overall = replace(earlier.overall)
        weight = min(self.overall.weight, EARLIER_WEIGHT)
        self.ranks = [Rate(self.overall.mean, weight), *map(replace, earlier.ranks[1:])]
        # By depth, how far its rate of first choices is from that of all depths.
        self.depths = [replace(rate) for rate in earlier.depths]
        self.trials = min(earlier.trials, EARLIER_WEIGHT)

    def add_first_choice(self, accepted: bool, depth: int = 0) -> None:
        """Count a draft token that the draft prefers to all others, of a depth from 0."""
        self.overall.add(accepted)
        self.ranks[0].add(accepted)
        self.depths[min(depth, MAX_DEPTH - 1)].add(accepted - self.ranks[0].mean)
        self.trials = min(self.trials + 1, MEMORY)

    def count(self, topology: Topology, path: Sequence[int]) -> None:
        """Count the verification of one row: the children of the root and of accepted nodes.

        Args:
            topology: the verified tree.
            path: its accepted nodes, from the first level down; empty if none is accepted.
        """
        parent = ROOT
        for depth in range(min(len(path) + 1, topology.depth)):
            children = topology.children.get(parent, ())
            accepted = path[depth] if depth < len(path) else ROOT
            if children:
                self.add_first_choice(children[0] == accepted, depth)
            if accepted not in children[:1]:
                for rate, child in zip(self.ranks[1:], children[1:], strict=False):
                    rate.add(child == accepted)
                    if child == accepted:
                        break
            parent = accepted

    @property
    def first_choices(self) -> list[float]:
        """The rates of first choices by depth."""
        mean = self.ranks[0].mean
        return [min(max(mean + rate.mean, 0.0), 1.0) for rate in self.depths]

    @property
    def caution(self) -> float:
        """The lower bound of the rate of first choices (about 80%), relative to the rate."""
        mean = self.ranks[0].mean
        return max(1 - self._spread / mean, 0.0) if mean else 0.0

    @property
    def hope(self) -> float:
        """The upper bound, relative to the rate."""
        mean = self.ranks[0].mean
        return min(mean + self._spread, 1.0) / max(mean, 1e-9)

    @property
    def _spread(self) -> float:
        mean = self.ranks[0].mean
        return 1.3 * sqrt(max(mean * (1 - mean), 0.05) / (self.trials + 0.5))


Seconds = Callable[[int], float]
"""Maps a number of nodes to the seconds of a forward over them."""

Path = tuple[int, ...]
"""A node of a tree: the rank of each draft token from the root to the node."""


@dataclass(frozen=True)
class RoundPlan:
    """A tree with the expected result of a round by the depth d to which it is grown; 0 is plain
    decoding.

    Args:
        tree: as deep as it may be grown.
        tokens: expected tokens of a round, the one of the target included.
        first_choices: probability that the first choices of all levels down to d are accepted.
        draft_seconds: seconds of the draft forwards.
        check_seconds: seconds of the verification.
    """

    tree: Topology
    tokens: list[float]
    first_choices: list[float]
    draft_seconds: list[float]
    check_seconds: list[float]

    @classmethod
    def of(
        cls, tree: Topology, rates: AcceptanceRates, check: Seconds, level: Seconds
    ) -> RoundPlan:
        """The plan of a tree.

        Args:
            tree: to be grown.
            rates: of acceptance; the last depth stands for all below it.
            check: seconds of a verification by number of draft tokens.
            level: seconds of a draft forward by number of nodes.
        """
        firsts = rates.first_choices
        firsts += firsts[-1:] * (tree.depth - len(firsts))
        later_rates = [rate.mean for rate in rates.ranks[1:]]
        reached = {ROOT: 1.0}
        tokens = [1.0] + [0.0] * tree.depth
        for parent, children in tree.children.items():
            depth = tree.depths[parent] if parent != ROOT else 0
            rest = reached[parent]
            for node, rate in zip(children, (firsts[depth], *later_rates), strict=False):
                reached[node] = rest * rate
                tokens[depth + 1] += reached[node]
                rest -= reached[node]
        return cls(
            tree,
            list(accumulate(tokens)),
            list(accumulate(firsts[: tree.depth], lambda a, b: a * b, initial=1.0)),
            list(accumulate(map(level, level_widths(tree)), initial=0.0)),
            list(map(check, level_sizes(tree))),
        )

    def rate(self, depth: int, factor: float = 1.0) -> float:
        """Expected tokens per second, if the rates of acceptance are multiplied by a factor."""
        tokens = self.tokens[depth]
        if factor != 1:
            gains = (self.tokens[d] - self.tokens[d - 1] for d in range(1, depth + 1))
            tokens = 1 + sum(gain * factor**d for d, gain in enumerate(gains, 1))
        return tokens / (self.draft_seconds[depth] + self.check_seconds[depth])

    def loss(self, depth: int) -> float:
        """Seconds by which a round takes longer than a plain one: what is lost if nothing is
        accepted."""
        return self.draft_seconds[depth] + self.check_seconds[depth] - self.check_seconds[0]

    def gain_below(self, depth: int, end: int, probability: float, rate: float) -> float:
        """The most tokens that levels below a grown one are expected to bring, less those that
        other rounds would make in the time.

        Args:
            depth: of the grown level.
            end: of the deepest level that is allowed.
            probability: that the first choices down to the grown level are accepted.
            rate: tokens per second of other rounds.
        """
        expected = self.first_choices[depth]
        scale = probability / expected if expected else 0.0
        spent = self.draft_seconds[depth] + self.check_seconds[depth]
        gains = (
            scale * (self.tokens[d] - self.tokens[depth])
            - rate * (self.draft_seconds[d] + self.check_seconds[d] - spent)
            for d in range(depth + 1, end + 1)
        )
        return max(gains, default=0.0)


PLAIN = RoundPlan(EMPTY, [1.0], [1.0], [0.0], [1.0])
"""A plan that drafts nothing."""


@lru_cache
def level_widths(tree: Topology) -> tuple[int, ...]:
    """Nodes with children by level, the root's level first: the widths of the draft's forwards."""
    counts = Counter(0 if node == ROOT else tree.depths[node] for node in tree.inner)
    return tuple(counts[depth] for depth in range(tree.depth))


@lru_cache
def level_sizes(tree: Topology) -> tuple[int, ...]:
    """Nodes of the tree cut to each depth, from 0 on."""
    counts = Counter(tree.depths)
    return tuple(accumulate((counts[depth] for depth in range(1, tree.depth + 1)), initial=0))


def likeliest_paths(rates: Sequence[float], num_nodes: int) -> list[Path]:
    """The most likely nodes of the infinite tree, most likely first.

    Args:
        rates: falling probabilities by rank that a draft token is accepted, the same at all depths.
        num_nodes: number of nodes to return.
    """
    paths: list[Path] = []
    heap: list[tuple[float, Path]] = [(-rates[0], (0,))]  # negative: the most likely comes first
    while len(paths) < num_nodes:
        value, path = heapq.heappop(heap)
        paths.append(path)
        *parent, rank = path
        heapq.heappush(heap, (value * rates[0], (*path, 0)))
        if rank + 1 < len(rates):
            heapq.heappush(heap, (value * rates[rank + 1] / rates[rank], (*parent, rank + 1)))
    return paths


MAX_NODES = 48
TREES = (
    chain(20),
    *(from_paths(likeliest_paths((0.6, 0.2, 0.08, 0.04), n)) for n in (2, 5, 12, 25, MAX_NODES)),
)
"""What the automatic tree chooses from, each cut to any depth; the first one is a chain."""
