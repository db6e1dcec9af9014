"""The tuner chooses trees by its measurements. tests/exact shows that answers never change."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from draftlens.core.tree import EMPTY, ROOT, Topology
from draftlens.draft import tuner as tuner_module
from draftlens.draft.hit_rates import HitRates
from draftlens.draft.tuner import (
    EXPLORE_EVERY,
    EXPLORE_TREES,
    MAX_NODES,
    MIN_GAIN,
    REPLAN_EVERY,
    TIMING_WINDOW,
    Costs,
    TreeTuner,
    tuner_of,
)
from draftlens.ops.tree_search import best_tree, tokens_per_second


class Model:
    """Takes the place of a target or a draft."""


@dataclass(frozen=True)
class Machine:
    """A simulated machine.

    Verifying N draft tokens takes 1 + `check` * N seconds and a draft forward takes `step` seconds.
    Draft tokens of rank r are correct with chance `chances[r]`. A size may be slower at its second
    timing: `slow` is (size, factor)."""

    chances: tuple[float, ...]
    check: float
    step: float
    slow: tuple[int, float] = (-1, 1)

    def play(self, tuner: TreeTuner, rounds: int, seed: int = 0) -> list[tuple[int, int, float]]:
        """(nodes, tokens, seconds) of each round."""
        rng, played, times = random.Random(seed), [], Counter[int]()
        for _ in range(rounds):
            tree = tuner.tree()
            nodes, drafting = len(tree), self.step * tree.depth
            tuner.drafted(tree, drafting)
            times[nodes] += 1
            path, checking = self._right(tree, rng), 1 + self.check * nodes
            if (nodes, times[nodes]) == (self.slow[0], 2):
                checking *= self.slow[1]
            tuner.judged(tree, [path], checking)
            played.append((nodes, 1 + len(path), drafting + checking))
        return played

    def _right(self, tree: Topology, rng: random.Random) -> list[int]:
        path: list[int] = []
        while children := tree.children.get(path[-1] if path else ROOT, ()):
            draw = rng.random()
            right = [
                child for rank, child in enumerate(children) if draw < sum(self.chances[: rank + 1])
            ]
            if not right:
                break
            path.append(right[0])
        return path


def sizes(played: list[tuple[int, int, float]]) -> list[int]:
    return [nodes for nodes, *_ in played]


def rate(played: list[tuple[int, int, float]]) -> float:
    """Tokens per second."""
    return sum(tokens for _, tokens, _ in played) / sum(seconds for *_, seconds in played)


EXPENSIVE, CHEAP = Machine((0.6, 0.1), 0.5, 0.2), Machine((0.6, 0.2), 0.0001, 0.01)
USELESS, TYPICAL = Machine((0.02,), 0.3, 0.5), Machine((0.75, 0.1, 0.03), 0.04, 0.17)


def test_expensive_checking_makes_small_trees_and_cheap_checking_large_ones() -> None:
    expensive, cheap = (TreeTuner(HitRates()) for _ in range(2))
    # A tree of 25 nodes is an exploration of other ranks.
    assert max(sizes(EXPENSIVE.play(expensive, 60))[30:]) <= 25
    assert sorted(sizes(EXPENSIVE.play(expensive, 20)))[10] <= 2
    assert sorted(sizes(CHEAP.play(cheap, 40))[10:])[15] == MAX_NODES


def test_drafting_that_does_not_pay_is_turned_off() -> None:
    tuner = TreeTuner(HitRates())
    USELESS.play(tuner, 30)
    assert sorted(sizes(USELESS.play(tuner, 20)))[10] == 0
    assert rate(USELESS.play(tuner, 3000)) > 0.95  # 1 without explorations


def test_checks_lie_on_straight_lines_between_lower_quartiles() -> None:
    """The first timing of each size does not count."""
    costs = Costs()
    first = ((5, 90.0), (25, 90.0), (10, 90.0), (40, 90.0))
    for nodes, seconds in (
        *first,
        (5, 1.0),
        (5, 3.0),
        (5, 2.0),
        (5, 2.5),
        (5, 2.2),
        (25, 5.0),
        (10, 3.0),
    ):
        costs.record_check(nodes, seconds)
    assert costs.sizes == [5, 10, 25]
    seconds = costs.verify_seconds()
    assert [seconds(n) for n in (5, 10, 25)] == pytest.approx([2.0, 3.0, 5.0])
    assert seconds(7) == pytest.approx(2.4)
    assert seconds(40) == pytest.approx(7.0)
    assert seconds(0) == pytest.approx(1.0)


def test_no_size_takes_longer_than_a_larger_one() -> None:
    costs = Costs()
    for nodes, seconds in ((1, 9.0), (3, 1.0), (6, 9.0), (25, 2.0)):
        costs.record_check(nodes, 0)
        costs.record_check(nodes, seconds)
    seconds = costs.verify_seconds()
    assert [seconds(n) for n in (0, 1, 3, 6, 25)] == pytest.approx([1, 1, 1, 2, 2])


def test_a_draft_forward_takes_a_part_of_a_tree() -> None:
    costs = Costs()
    assert costs.draft_seconds == 0
    for depth, seconds in ((0, 7.0), (4, 8.0), (1, 3.0)):
        costs.record_draft(depth, seconds)
    assert costs.draft_seconds == 2


def test_a_target_keeps_its_tuners() -> None:
    """One for each draft, number of rows and doubling of the prompt."""
    target, second_target, draft, second_draft = (Model() for _ in range(4))
    tuner = tuner_of(target, draft, (), 1, 1100)
    assert tuner_of(target, draft, (), 1, 2000) is tuner
    tuners = [
        tuner,
        tuner_of(target, draft, (), 2, 1100),
        tuner_of(target, draft, (), 1, 2100),
        tuner_of(target, draft, ("window", 0.5), 1, 1100),
        tuner_of(target, second_draft, (), 1, 1100),
        tuner_of(target, target, (), 1, 1100),
        tuner_of(second_target, draft, (), 1, 1100),
    ]
    assert len({id(each) for each in tuners}) == 7


@pytest.mark.parametrize("collected", ["target", "draft", "self"])
def test_a_record_ends_with_its_models(collected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model created later never inherits measurements, not even at the same address."""
    monkeypatch.setattr(tuner_module, "_RECORDS", weakref.WeakKeyDictionary())
    models = {"target": Model(), "draft": Model()}
    if collected == "self":
        models = {"self": Model()}
    target, draft = (models.get(role, models.get("self")) for role in ("target", "draft"))
    rates = weakref.ref(tuner_of(target, draft, (), 1, 1000).rates)
    del target, draft
    gc.collect()
    assert rates() is not None
    del models[collected]
    gc.collect()
    assert rates() is None


def test_lengths_share_hit_rates_but_not_costs() -> None:
    """Short prompts are verified fast and long ones slowly; neither changes what is chosen for the
    other."""
    model, draft, second_draft = Model(), Model(), Model()
    short, long = (tuner_of(model, draft, (), 1, length) for length in (1000, 16000))
    assert short.rates is long.rates
    for _ in range(4):
        CHEAP.play(short, 40)
        EXPENSIVE.play(long, 40)
    assert sorted(sizes(CHEAP.play(short, 20)))[10] == MAX_NODES
    assert sorted(sizes(EXPENSIVE.play(long, 20)))[10] <= 3
    assert tuner_of(model, second_draft, (), 1, 1000).rates is not short.rates


def test_no_tree_is_larger_than_the_limit() -> None:
    tuner = TreeTuner(HitRates())
    assert max(sizes(Machine((0.9, 0.05), 0.0, 0.0).play(tuner, 80))) <= len(tuner.limit)


def test_another_tree_must_be_faster_by_some_margin() -> None:
    """The chosen tree stays until another one is faster by more than MIN_GAIN."""
    tuner = TreeTuner(HitRates())
    Machine((0.8, 0.1), 0.05, 0.1).play(tuner, 200)
    chosen, gains, slope = tuner.tree(), [1.0], 0.05
    while gains[-1] <= MIN_GAIN:
        assert next_choice(tuner) is chosen
        slope *= 1.01
        record_slope(tuner, slope)
        known = tuner.rates.chances(), tuner.costs.verify_seconds(), tuner.costs.draft_seconds
        gains.append(best_tree(*known, MAX_NODES)[1] / tokens_per_second(chosen, *known))
    assert gains[-2] > 1.005  # a better tree existed, but by too little
    assert len(next_choice(tuner)) < len(chosen)


def record_slope(tuner: TreeTuner, slope: float) -> None:
    """Checking N nodes takes 1 + slope * N seconds from now on."""
    for nodes in tuner.costs.sizes:
        for _ in range(TIMING_WINDOW):
            tuner.costs.record_check(nodes, 1 + slope * nodes)


def next_choice(tuner: TreeTuner) -> Topology:
    """The tree after enough rounds that a choice is due; explorations are skipped."""
    for _ in range(REPLAN_EVERY):
        tuner.judged(EMPTY, [], 1.0)
    trees = tuner.tree(), tuner.tree()
    return trees[trees[0] in EXPLORE_TREES]


@pytest.mark.parametrize("size", [1, 3, 6, 25])
@pytest.mark.parametrize(
    "machine",
    [
        Machine((0.05,), 0.1, 0.5),
        Machine((0.8,), 0.25, 0.15),
        Machine((0.75, 0.1, 0.03), 0.04, 0.17),
    ],
)
def test_one_slow_timing_decides_nothing(machine: Machine, size: int) -> None:
    """The only timing of a size that counts may be an accident; its cost in the end is small."""
    quiet = rate(machine.play(TreeTuner(HitRates()), 3000)[1000:])
    shaken = rate(replace(machine, slow=(size, 3)).play(TreeTuner(HitRates()), 3000)[1000:])
    assert shaken > 0.98 * quiet


@pytest.mark.parametrize("machine", [USELESS, TYPICAL])
def test_concurrent_answers_share_measurements(machine: Machine) -> None:
    """Two answers in lockstep: in the end both draft as one alone would, with explorations."""
    tuner, rng, played = TreeTuner(HitRates()), random.Random(0), []
    for _ in range(300):
        trees = tuner.tree(), tuner.tree()
        for tree in trees:
            tuner.drafted(tree, machine.step * tree.depth)
            tuner.judged(tree, [machine._right(tree, rng)], 1 + machine.check * len(tree))
        played.append(trees)
    alone = sorted(sizes(machine.play(TreeTuner(HitRates()), 600)))[300]
    for answer in zip(*played, strict=True):
        assert abs(sorted(map(len, answer))[150] - alone) <= 2
    explorations = [tree for trees in played[20:] for tree in trees if tree in EXPLORE_TREES]
    assert 2 <= len(explorations) <= 600 // EXPLORE_EVERY
