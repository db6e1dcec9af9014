"""The tuner counts rightly and chooses by what it counted; its choices never change an answer (tests/exact)."""

from __future__ import annotations

import random

import pytest

from draftlens.draft.tuner import MAX_DEPTH, MAX_NODES, RANKS, TreeTuner, tuner_of
from draftlens.ops.tree import from_paths
from draftlens.types import ROOT, Topology


class Model:
    """Stands in for a target."""


def play(tuner: TreeTuner, chances: list[float], cost: float, draft: float, rounds: int, seed: int = 0) -> list[int]:
    """Rounds of a made-up machine: seconds to verify N nodes are 1 + cost * N; returns the chosen trees' sizes."""
    rng, sizes = random.Random(seed), []
    for _ in range(rounds):
        tree = tuner.tree()
        sizes.append(len(tree))
        tuner.drafted(tree, draft * tree.depth)
        path: list[int] = []
        parent = ROOT
        while children := tree.children.get(parent, ()):
            draw, right = rng.random(), None
            for rank, child in enumerate(children):
                if draw < sum(chances[: rank + 1]):
                    right = child
                    break
            if right is None:
                break
            path.append(right)
            parent = right
        tuner.judged(tree, [path], 1 + cost * len(tree))
    return sizes


def test_counts_by_depth_and_rank() -> None:
    tuner = TreeTuner()
    tree = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
    tuner.judged(tree, [(0, 3), (1,), ()], 1.0)  # paths: ranks 0 then 1; rank 1; nothing
    # Behind a first choice (0) or another (1), depth, rank.
    trials = {(0, 0, 0): 3, (0, 0, 1): 3, (0, 1, 0): 1, (0, 1, 1): 1, (1, 1, 0): 1}
    assert {key: n for key, n in tuner.trials.items() if n} == trials
    assert {key: n for key, n in tuner.hits.items() if n} == {(0, 0, 0): 1, (0, 0, 1): 1, (0, 1, 1): 1}


def test_chances_come_near_the_truth_and_never_rise_with_the_rank() -> None:
    tuner = TreeTuner()
    play(tuner, [0.75, 0.1, 0.05, 0.02], 0.001, 0.01, 600)
    for table in tuner.chances():
        assert table[0][0] == pytest.approx(0.75, abs=0.06)
        assert table[0][1] == pytest.approx(0.1, abs=0.04)
        assert len(table) == MAX_DEPTH
        for row in table:
            assert len(row) == RANKS
            assert row == sorted(row, reverse=True)


def test_what_follows_a_second_choice_is_counted_apart() -> None:
    tuner = TreeTuner()
    tree = from_paths([[0], [1], [0, 0], [1, 0]])  # nodes 0 and 1, then 2 behind 0 and 3 behind 1
    for _ in range(50):
        tuner.judged(tree, [(0,), (1, 3)], 1.0)
    behind_first, behind_second = tuner.chances()
    assert behind_first[1][0] < 0.1
    assert behind_second[1][0] > 0.9


def test_dear_checking_makes_small_trees_and_cheap_checking_large_ones() -> None:
    dear, cheap = TreeTuner(), TreeTuner()
    assert max(play(dear, [0.6, 0.1], 0.5, 0.2, 60)[30:]) <= 25  # 25 is a look at other ranks
    assert sorted(play(dear, [0.6, 0.1], 0.5, 0.2, 20))[10] <= 2
    assert sorted(play(cheap, [0.6, 0.2], 0.0001, 0.01, 40)[10:])[15] == MAX_NODES


def test_drafting_that_does_not_pay_is_turned_off() -> None:
    tuner = TreeTuner()
    play(tuner, [0.02], 0.3, 0.5, 30)
    assert sorted(play(tuner, [0.02], 0.3, 0.5, 20))[10] == 0


def test_verify_seconds_lie_on_straight_lines_between_medians() -> None:
    """The first time of each size is no measurement."""
    tuner = TreeTuner()
    first = ((5, 90.0), (25, 90.0), (10, 90.0), (40, 90.0))
    for nodes, seconds in (*first, (5, 1.0), (5, 3.0), (5, 2.0), (25, 4.0), (10, 3.0)):
        tuner.judged(Topology(tuple(range(-1, nodes - 1))), [], seconds)
    assert [tuner.verify_seconds(n) for n in (5, 10, 25)] == pytest.approx([2.0, 3.0, 4.0])
    assert tuner.verify_seconds(7) == pytest.approx(2.4)
    assert tuner.verify_seconds(40) == pytest.approx(5.0)
    assert tuner.verify_seconds(0) == pytest.approx(1.0)


def test_a_target_keeps_its_tuners() -> None:
    one, two = Model(), Model()
    assert tuner_of(one, "a") is tuner_of(one, "a")
    assert tuner_of(one, "a") is not tuner_of(one, "b")
    assert tuner_of(one, "a") is not tuner_of(two, "a")


def test_no_tree_is_larger_than_the_limit() -> None:
    tuner = TreeTuner()
    assert max(play(tuner, [0.9, 0.05], 0.0, 0.0, 80)) <= len(tuner.limit)


def test_another_tree_must_promise_more_than_a_little() -> None:
    """What is chosen stays while times waver by less than BETTER."""
    tuner = TreeTuner()
    play(tuner, [0.8, 0.1], 0.05, 0.1, 200)
    before = tuner.tree()
    for waver in (0.995, 1.005) * 6:
        tuner.judged(before, [], (1 + 0.05 * len(before)) * waver)
        assert tuner.tree() in (before, TreeTuner().tree())  # the latter is the look at other ranks
