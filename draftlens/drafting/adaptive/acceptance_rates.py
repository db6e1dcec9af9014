"""How often draft tokens are accepted, by depth and by rank among their siblings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

from draftlens.core.tree import ROOT, Topology

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
