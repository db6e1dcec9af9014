"""Copied tokens after the tree of a model."""

from __future__ import annotations

import time

import pytest
import torch

from draftlens.core.tree import EMPTY, DraftTree, chain, from_paths
from draftlens.methods.mixed.drafter import (
    FREE_ROUNDS,
    SHARE,
    LookAllowance,
    continued,
    first_choices,
)

FORKED = from_paths([[0], [1], [0, 0], [1, 0], [0, 0, 0], [0, 0, 1]])


def test_the_path_of_first_choices() -> None:
    assert first_choices(FORKED) == [0, 2, 4]
    assert first_choices(chain(2)) == [0, 1]
    assert first_choices(EMPTY) == []


def test_each_row_has_its_own_further_tokens() -> None:
    tokens = torch.arange(18).view(3, 6)
    tree = continued(DraftTree.uniform(FORKED, tokens), [[7, 8], [], [9]])
    assert [topology.parents[6:] for topology in tree.topologies] == [(4, 6), (), (4,)]
    assert all(topology.parents[:6] == FORKED.parents for topology in tree.topologies)
    assert tree.tokens[:, :6].equal(tokens)
    assert tree.tokens[:, 6:].tolist() == [[7, 8], [0, 0], [9, 0]]
    assert first_choices(tree.topologies[0]) == [0, 2, 4, 6, 7]
    for topology in tree.topologies:  # in the order of their levels
        assert list(topology.depths) == sorted(topology.depths)


class Clock:
    """Time that goes on when it is told to."""

    now = 0.0

    def pass_round(self, allowance: LookAllowance, cost: float, saved: float = 0.0) -> bool:
        """A round of a second in which looking takes `cost`; returns whether it looks."""
        allowance.next_round()
        looks = allowance.is_left
        if looks:
            with allowance.looking():
                self.now += cost
            allowance.save(saved)
        self.now += 1.0 - cost * looks
        return looks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def test_looking_in_vain_takes_its_share_of_the_time(clock: Clock) -> None:
    allowance = LookAllowance()
    looks = [clock.pass_round(allowance, 0.1) for _ in range(500)]
    assert all(looks[:FREE_ROUNDS])
    rest = looks[FREE_ROUNDS:]
    assert 0.1 * sum(rest) <= SHARE * len(looks)
    assert any(rest[-10:])


def test_cheap_looks_go_on(clock: Clock) -> None:
    """As beside a forward of a large model."""
    allowance = LookAllowance()
    assert all(clock.pass_round(allowance, 0.01) for _ in range(100))


def test_what_copies_save_pays_for_looking(clock: Clock) -> None:
    allowance = LookAllowance()
    assert all(clock.pass_round(allowance, 0.1, saved=0.1) for _ in range(100))
    many = [clock.pass_round(allowance, 0.1, saved=5.0) for _ in range(100)]
    assert all(many)
    in_vain = [clock.pass_round(allowance, 0.1) for _ in range(100)]
    assert sum(in_vain) < 1 / 0.1 + SHARE * 100 / 0.1 + 2, "at most a round of it is kept"
