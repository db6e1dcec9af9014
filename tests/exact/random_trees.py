"""Draft trees that are chosen at random in place of a controller's choices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draftlens.core.tree import EAGLE_PATHS, EMPTY, ROOT, Topology, chain, from_paths
from draftlens.drafting.adaptive.controller import RoundState, TreeController

TREES = (
    EMPTY,
    chain(1),
    chain(2),
    chain(5),
    chain(9),
    from_paths([[0], [1]]),
    from_paths([[0], [1], [0, 0], [1, 0], [0, 0, 0], [0, 0, 1]]),
    from_paths(EAGLE_PATHS),
)


def random_tree(rng: random.Random, least: int = 0, most: int = 20) -> Topology:
    """A tree of this many nodes, in the order of their levels."""
    parents: list[int] = []
    for node in range(rng.randint(least, most)):
        parents.append(rng.randint(parents[-1] if parents else ROOT, node - 1))
    return Topology(tuple(parents))


def choose_at_random(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Let all choices of controllers be random."""
    grown = [0]

    def tree(self: TreeController, at: RoundState) -> Topology:
        return rng.choice(TREES)

    def caught_up(self: TreeController, hits: int, misses: int) -> Topology:
        grown[0] = 0
        return rng.choice(TREES)

    def grow(self: TreeController, confidences: Sequence[float]) -> bool:
        assert all(0 <= value <= 1.0001 for value in confidences)
        grown[0] += 1
        return rng.random() < 0.8

    def kept_depth(self: TreeController) -> int:
        return rng.randint(0, grown[0]) if rng.random() < 0.3 else grown[0]

    def further(self: TreeController, chances: Sequence[Sequence[float]]) -> tuple[int, float]:
        assert all(0 <= value <= 1 for row in chances for value in row)
        return rng.randint(0, max(map(len, chances), default=0)), rng.random()

    monkeypatch.setattr(TreeController, "further", further)
    monkeypatch.setattr(TreeController, "may_read", lambda *given: rng.random() < 0.5)
    monkeypatch.setattr(TreeController, "tree", tree)
    monkeypatch.setattr(TreeController, "caught_up", caught_up)
    monkeypatch.setattr(TreeController, "grown", grow)
    monkeypatch.setattr(TreeController, "kept_depth", property(kept_depth))
