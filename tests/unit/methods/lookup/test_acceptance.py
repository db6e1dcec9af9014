"""How many draft tokens from texts are worth checking."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlens.core.tree import ROOT
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts
from draftlens.methods.lookup.acceptance import DraftBudget, MatchRates, likeliest_length
from draftlens.methods.lookup.candidates import Candidate, Kind, PrefixTree, merge
from draftlens.methods.lookup.ngram_index import Reference, TokenIndex

repeatable = settings(derandomize=True, deadline=None, database=None)
candidates = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=5)
FLAT = CostCurve((1, 64), (1.0, 1.0))
STEEP = CostCurve(tuple(range(1, 65)), tuple(float(width) for width in range(1, 65)))


def budget_of(curve: CostCurve, most: int = 48) -> DraftBudget:
    return DraftBudget(ForwardCosts(curve), nullcontext(), most)


def candidate_of(agreement: int, kind: Kind = Kind.MATCH, boundary: int | None = None) -> Candidate:
    """A candidate with a head after `boundary` tokens."""
    source = Reference(TokenIndex(1))
    if boundary is None:
        return Candidate((0,), agreement, source, 0, kind)
    head = Candidate((0,), 0, source, 0, Kind.HEAD)
    return Candidate((0,) * (boundary + 1), agreement, source, 0, kind, head=head)


def slow_chance(rates: MatchRates, tree: PrefixTree, evidence: list[Candidate], node: int) -> float:
    """The chance of one node: that of its parent, times that of being the right child."""
    if node == ROOT:
        return 1.0
    parent = tree.topology.parents[node]
    depth = tree.topology.depths[node] - 1
    siblings = [other for other, p in enumerate(tree.topology.parents) if p == parent]
    rank = siblings.index(node)
    kind, agreement = evidence[tree.origins[siblings[0]]].evidence_at(depth)
    chance = rates.chance(agreement, kind)
    if rank:
        chance = (1 - chance) * rates._other * (1 - rates._other) ** (rank - 1)
    return slow_chance(rates, tree, evidence, parent) * chance


@repeatable
@given(candidates, st.integers(0, 1000))
def test_chances_of_nodes_equal_the_slow_twin(sequences: list[list[int]], seed: int) -> None:
    rng = random.Random(seed)
    rates = MatchRates()
    tree = merge(sequences, max_nodes=100)
    evidence = [
        candidate_of(
            rng.randint(1, 20), rng.choice(list(Kind)), rng.choice([None, rng.randint(0, 3)])
        )
        for _ in sequences
    ]
    for _ in range(10):
        rates.count(tree, evidence, rng.choices(range(4), k=4))
    chances = rates.node_chances(tree, evidence)
    for node, chance in enumerate(chances):
        assert chance == pytest.approx(slow_chance(rates, tree, evidence, node))
        parent = tree.topology.parents[node]
        assert 0 <= chance <= (1 if parent == ROOT else chances[parent])
    for number in range(len(tree) + 1):
        assert len(tree.kept(likeliest_length(chances, number))) == number


def slow_width(
    curve: CostCurve, chances: list[list[float]], rows: int, most: int
) -> tuple[int, float]:
    """All widths tried; their number of tokens a second."""
    found = []
    for width in range(min(most, max(map(len, chances), default=0), curve.largest // rows - 1) + 1):
        tokens = len(chances) + sum(sum(sorted(values, reverse=True)[:width]) for values in chances)
        found.append((tokens / curve.cost(rows * (width + 1)), -width))
    rate, width = max(found)
    return -width, rate


@repeatable
@given(
    st.lists(st.lists(st.floats(0.01, 0.99), max_size=12), min_size=1, max_size=4),
    st.sampled_from([0.02, 0.1, 0.4, 1.0]),
    st.integers(0, 2),
    st.integers(1, 20),
)
def test_the_width_equals_the_slow_twin(
    chances: list[list[float]], slope: float, ended: int, most: int
) -> None:
    curve = CostCurve(tuple(range(1, 41)), tuple(1 + slope * width for width in range(40)))
    rows = len(chances) + ended
    width = budget_of(curve, most).best(chances, rows, 0)[0]
    _, best = slow_width(curve, chances, rows, most)
    tokens = len(chances) + sum(sum(sorted(row, reverse=True)[:width]) for row in chances)
    assert tokens / curve.cost(rows * (width + 1)) == pytest.approx(best)


def test_nothing_is_checked_where_it_does_not_pay() -> None:
    chances = [[0.9, 0.81, 0.7]]
    assert budget_of(FLAT).best(chances, 1, 0)[0] == 3
    assert budget_of(STEEP).best(chances, 1, 0)[0] == 0
    assert budget_of(FLAT).best([[]], 1, 0)[0] == budget_of(FLAT).best([], 1, 0)[0] == 0


def test_draft_tokens_become_fewer_with_failures_and_more_with_successes() -> None:
    """Also while none is checked: the answer shows which would have been right."""
    curve = CostCurve(tuple(range(1, 41)), tuple(1 + 0.12 * width for width in range(40)))
    budget, rates = budget_of(curve), MatchRates()
    tree = merge([range(1, 21)], max_nodes=20)

    def width() -> int:
        return budget.best([rates.node_chances(tree, [candidate_of(3)])], 1, 0)[0]

    widths = [width()]
    for _ in range(10):
        rates.count(tree, [candidate_of(3)], [99])
        widths.append(width())
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2
    assert widths[-1] == 0
    for _ in range(12):
        rates.count(
            tree, [candidate_of(3)], [1, 99]
        )  # one token of a round without draft tokens, and the next
    assert width() > 0
    for _ in range(6):
        rates.count(tree, [candidate_of(3)], range(1, 21))
    assert width() > widths[0]


def test_second_choices_have_a_rate_of_their_own() -> None:
    rates = MatchRates()
    tree = merge([[1], [2]], max_nodes=5)
    before = rates.node_chances(tree, [candidate_of(2), candidate_of(2)])[1]
    for _ in range(5):
        rates.count(tree, [candidate_of(2), candidate_of(2)], [2])
    first, second = rates.node_chances(tree, [candidate_of(2), candidate_of(2)])
    assert second > 2 * before
    assert second > first


def test_a_longer_match_is_more_likely_right() -> None:
    chances = [MatchRates().chance(length) for length in range(1, 20)]
    assert chances == sorted(chances)
    assert 0.1 < chances[0] < 0.3 < 0.85 < chances[-1] < 1


def test_costs_learn_from_every_round() -> None:
    budget = DraftBudget(ForwardCosts(None), nullcontext(), 48)
    assert budget.best([[0.9] * 40], 1, 0)[0] == 2  # without a curve, no cost beyond it is known
    for _ in range(3):
        budget.record(0, 1, 10, 0.010)
        budget.record(2, 1, 10, 0.011)
    assert budget.best([[0.9] * 40], 1, 0)[0] == 5
    for _ in range(9):
        budget.record(2, 1, 10, 0.1)
        budget.record(5, 1, 10, 0.2)
    assert budget.best([[0.9] * 40], 1, 0)[0] == 0
