"""The tuner chooses by what it measured; its choices never change an answer (tests/exact)."""

from __future__ import annotations

import random

import pytest

from draftlens.draft.hit_rates import HitRates
from draftlens.draft.tuner import AGAIN, BETTER, MAX_NODES, MEMORY, TreeTuner, tuner_of
from draftlens.ops.tree import chain
from draftlens.ops.tree_search import best_tree, tokens_a_second
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


def test_dear_checking_makes_small_trees_and_cheap_checking_large_ones() -> None:
    dear, cheap = (TreeTuner(HitRates()) for _ in range(2))
    assert max(play(dear, [0.6, 0.1], 0.5, 0.2, 60)[30:]) <= 25  # 25 is a look at other ranks
    assert sorted(play(dear, [0.6, 0.1], 0.5, 0.2, 20))[10] <= 2
    assert sorted(play(cheap, [0.6, 0.2], 0.0001, 0.01, 40)[10:])[15] == MAX_NODES


def test_drafting_that_does_not_pay_is_turned_off() -> None:
    tuner = TreeTuner(HitRates())
    play(tuner, [0.02], 0.3, 0.5, 30)
    assert sorted(play(tuner, [0.02], 0.3, 0.5, 20))[10] == 0


def test_verify_seconds_lie_on_straight_lines_between_medians() -> None:
    """The first time of each size is no measurement."""
    tuner = TreeTuner(HitRates())
    first = ((5, 90.0), (25, 90.0), (10, 90.0), (40, 90.0))
    for nodes, seconds in (*first, (5, 1.0), (5, 3.0), (5, 2.0), (25, 4.0), (10, 3.0)):
        tuner.judged(Topology(tuple(range(-1, nodes - 1))), [], seconds)
    assert [tuner.verify_seconds(n) for n in (5, 10, 25)] == pytest.approx([2.0, 3.0, 4.0])
    assert tuner.verify_seconds(7) == pytest.approx(2.4)
    assert tuner.verify_seconds(40) == pytest.approx(5.0)
    assert tuner.verify_seconds(0) == pytest.approx(1.0)


def test_a_target_keeps_its_tuners() -> None:
    """One for each draft, number of rows and doubling of the prompt."""
    one, two = Model(), Model()
    tuner = tuner_of(one, "a", 1, 1100)
    assert tuner_of(one, "a", 1, 2000) is tuner
    others = [tuner_of(*asked) for asked in ((one, "a", 2, 1100), (one, "a", 1, 2100), (one, "b", 1, 1100))]
    assert len({id(other) for other in (tuner, *others, tuner_of(two, "a", 1, 1100))}) == 5


def test_what_is_guessed_is_known_at_every_length_and_what_it_costs_is_not() -> None:
    """Short prompts are checked fast and long ones slowly; neither unsettles what was chosen for the other."""
    model = Model()
    short, long = (tuner_of(model, "a", 1, length) for length in (1000, 16000))
    assert short.rates is long.rates
    for _ in range(4):
        play(short, [0.6, 0.2], 0.0001, 0.01, 40)
        play(long, [0.6, 0.2], 0.5, 0.01, 40)
    assert sorted(play(short, [0.6, 0.2], 0.0001, 0.01, 20))[10] == MAX_NODES
    assert sorted(play(long, [0.6, 0.2], 0.5, 0.01, 20))[10] <= 3
    assert tuner_of(model, "b", 1, 1000).rates is not short.rates


def test_no_tree_is_larger_than_the_limit() -> None:
    tuner = TreeTuner(HitRates())
    assert max(play(tuner, [0.9, 0.05], 0.0, 0.0, 80)) <= len(tuner.limit)


def test_another_tree_must_promise_more_than_a_little() -> None:
    """What is chosen stays until another tree is better by more than BETTER."""
    tuner = TreeTuner(HitRates())
    play(tuner, [0.8, 0.1], 0.05, 0.1, 200)
    chosen, gains, slope = tuner.tree(), [1.0], 0.05
    while gains[-1] <= BETTER:
        assert tuner.tree() is chosen
        slope *= 1.01
        retell(tuner, slope)
        known = tuner.rates.chances(), tuner.verify_costs(), 0.1
        gains.append(best_tree(*known, MAX_NODES)[1] / tokens_a_second(chosen, *known))
    assert gains[-2] > 1.005  # there was a better tree, by too little
    assert len(tuner.tree()) < len(chosen)


def retell(tuner: TreeTuner, slope: float) -> None:
    """Checking N nodes takes 1 + slope * N seconds from now on; the next tree is a choice."""
    for nodes in list(tuner.verify):
        for _ in range(MEMORY):
            tuner.judged(chain(nodes), [], 1 + slope * nodes)
    while tuner.rounds % AGAIN != 1:
        tuner.judged(chain(max(tuner.verify)), [], 1 + slope * max(tuner.verify))
