"""How often draft tokens are correct: a record of earlier answers, moved by the present one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from math import isfinite
from typing import Any

import pytest

from draftlens.core.tree import EMPTY, chain, from_paths
from draftlens.drafting.adaptive.acceptance_rates import (
    ANSWER_TRIALS,
    CONFIDENCE_EDGES,
    CONFIDENCE_PRIOR,
    MAX_DEPTH,
    MAX_TRIALS,
    PRIOR,
    PRIOR_WEIGHT,
    RANKS,
    RECENT_TRIALS,
    RECORD_WEIGHT,
    AnswerRates,
    HitRates,
    Tallies,
    Tally,
)

FORK = from_paths([[0], [1], [0, 0], [1, 0]])
"""Nodes 0 and 1, then 2 after 0 and 3 after 1."""
ONE = chain(1)


def record_with(chance: float, trials: int = int(MAX_TRIALS)) -> HitRates:
    """A record of earlier answers whose first choices were correct this often, evenly spread."""
    rates = HitRates()
    hits = [round(chance * (n + 1)) > round(chance * n) for n in range(trials)]
    rates.count(((0, 0, 0), hit) for hit in hits)
    return rates


def play(answer: AnswerRates, hits: Iterable[bool]) -> list[float]:
    """Chains of one token; the chance of a first choice after each of them."""
    means = []
    for hit in hits:
        answer.count(ONE, (0,) if hit else ())
        means.append(answer.first().mean)
    return means


def counts(tallies: Tallies) -> dict[Any, tuple[float, float]]:
    return {key: (tally.trials, tally.hits) for key, tally in tallies.items()}


def test_children_of_correct_nodes_count_by_branch_depth_and_rank() -> None:
    tree = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]])
    record = HitRates()
    answer = AnswerRates(record)
    for path in ((0, 3), (1, 4, 6), (1,), ()):
        answer.count(tree, path)
    assert counts(record.by_level) == {
        (0, 0, 0): (4, 1),
        (0, 0, 1): (4, 2),
        (0, 1, 0): (1, 0),
        (0, 1, 1): (1, 1),
        (1, 1, 0): (2, 1),  # after the second choice at the root
        (0, 2, 0): (1, 1),  # after a first choice again
    }
    assert counts(record.by_rank) == {
        (0, 0): (6, 2),
        (0, 1): (5, 3),
        (1, 0): (2, 1),
    }


def test_an_empty_tree_counts_nothing() -> None:
    record = HitRates()
    AnswerRates(record).count(EMPTY, ())
    assert not record.by_level
    assert not record.by_rank


def test_depths_beyond_the_last_count_for_the_last() -> None:
    record = HitRates()
    long = chain(MAX_DEPTH + 4)
    AnswerRates(record).count(long, range(len(long)))
    assert record.by_level[0, MAX_DEPTH - 1, 0].trials == 5
    assert max(depth for _, depth, _ in record.by_level) == MAX_DEPTH - 1  # type: ignore[misc]


def test_reading_a_missing_tally_adds_nothing() -> None:
    record = HitRates()
    AnswerRates(record).chances(0.5)
    assert not record.by_level
    assert not record.by_rank
    assert not record.by_confidence


def test_a_tally_forgets_what_is_older_than_its_limit() -> None:
    """It comes near the share of the latest trials, and counts for the limit at most."""
    tally = Tally()
    for _ in range(1000):
        tally.add(True, 40)
    assert tally.trials == pytest.approx(40)
    assert tally.share(0.5, 0) == pytest.approx(1.0)
    for _ in range(80):
        tally.add(False, 40)
    assert tally.trials == pytest.approx(40)
    assert tally.share(0.5, 0) == pytest.approx(0.0, abs=0.15)
    few = Tally()
    for hit in (True, True, False):
        few.add(hit, 40)
    assert (few.trials, few.hits) == (3, 2)


def test_before_any_trial_the_prior_holds_everywhere() -> None:
    record = HitRates()
    for branch in range(2):
        for rank in range(RANKS):
            assert record.rank_chance(branch, rank) == pytest.approx(PRIOR[rank])
            for depth in range(MAX_DEPTH):
                assert record.level_chance(branch, depth, rank) == pytest.approx(PRIOR[rank])
    for table in AnswerRates(record).chances(PRIOR[0]):
        for row in table:
            assert row == pytest.approx(PRIOR)


def test_each_tally_leans_on_a_wider_one() -> None:
    """A level on its rank at all depths, ranks after a second choice on those after a first one,
    and those on the prior; a lean counts for a few trials."""
    record = HitRates()
    record.count([((0, 2, 0), False)] * 30)
    assert record.rank_chance(0, 0) == pytest.approx(PRIOR_WEIGHT * PRIOR[0] / (30 + PRIOR_WEIGHT))
    assert record.level_chance(0, 5, 0) == record.rank_chance(0, 0)  # never seen
    assert record.rank_chance(1, 0) == record.rank_chance(0, 0)  # never seen
    assert record.level_chance(0, 2, 0) < record.level_chance(0, 5, 0)
    record.count([((1, 1, 0), True)] * 30)
    assert record.rank_chance(1, 0) > 0.85
    assert record.level_chance(1, 4, 0) == record.rank_chance(1, 0)
    assert record.rank_chance(0, 0) < 0.1  # not the other way around
    assert record.rank_chance(0, 1) == PRIOR[1]


def test_a_record_comes_near_the_truth_and_forgets_it_after_a_change() -> None:
    rng = random.Random(0)
    record = HitRates()
    for truth in (0.75, 0.2):
        for _ in range(int(3 * MAX_TRIALS)):
            record.count([((0, 0, 0), rng.random() < truth)])
        assert record.level_chance(0, 0, 0) == pytest.approx(truth, abs=0.06)
        assert record.by_rank[0, 0].trials <= MAX_TRIALS + 1e-6


def test_an_answer_begins_with_the_chances_of_the_record() -> None:
    """By depth and rank, where better ranks and the sum of 1 leave room for them."""
    rng = random.Random(1)
    record = HitRates()
    truth = {(0, 0): 0.9, (0, 1): 0.06, (1, 0): 0.5, (1, 1): 0.2, (2, 0): 0.3, (2, 1): 0.1}
    for _ in range(200):
        record.count(
            ((0, depth, rank), rng.random() < chance) for (depth, rank), chance in truth.items()
        )
    table = AnswerRates(record).chances(record.rank_chance(0, 0))[0]
    for depth, rank in truth:
        assert table[depth][rank] == pytest.approx(record.level_chance(0, depth, rank))
        assert table[depth][rank] == pytest.approx(truth[depth, rank], abs=0.1)


def test_an_answer_with_harder_text_moves_all_depths() -> None:
    """The easier depth stays the easier one."""
    record = HitRates()
    for number in range(200):
        record.count([((0, 0, 0), number % 10 > 0), ((0, 1, 0), number % 2 > 0)])
    answer = AnswerRates(record)
    easy = answer.chances(answer.first().mean)[0]
    play(answer, [n % 2 > 0 for n in range(40)])
    hard = answer.chances(answer.first().mean)[0]
    for depth in range(MAX_DEPTH):
        assert hard[depth][0] < easy[depth][0]
    assert hard[0][0] > hard[1][0] + 0.1


def test_the_record_counts_the_answer_as_well() -> None:
    record = HitRates()
    play(AnswerRates(record), [True] * 50)
    assert record.rank_chance(0, 0) > 0.95
    assert AnswerRates(record).first().mean == record.rank_chance(0, 0)


def test_a_record_counts_for_a_few_trials_of_a_new_answer() -> None:
    """Its text may be easier or harder."""
    answer = AnswerRates(record_with(0.5, 4000))
    before = answer.first()
    assert before.mean == pytest.approx(0.5, abs=0.02)
    (after,) = play(answer, [True])
    assert after == pytest.approx((1 + RECORD_WEIGHT * before.mean) / (RECORD_WEIGHT + 1))


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.9])
def test_an_answer_follows_its_own_text(chance: float) -> None:
    rng = random.Random(2)
    answer = AnswerRates(record_with(0.6))
    means = play(answer, (rng.random() < chance for _ in range(int(10 * ANSWER_TRIALS))))
    settled = means[int(ANSWER_TRIALS) :]
    assert sum(settled) / len(settled) == pytest.approx(chance, abs=0.08)


@pytest.mark.parametrize("before", [0, 1, 3, 8, 40, 200])
@pytest.mark.parametrize(("old", "new"), [(0.95, False), (0.05, True)])
def test_a_sudden_change_is_noticed_within_eight_trials(old: float, new: bool, before: int) -> None:
    """However many tokens of the answer were like those of earlier answers."""
    answer = AnswerRates(record_with(old))
    play(answer, [(n % 20 == 10) is (old < 0.5) for n in range(before)])
    assert abs(answer.first().mean - old) < 0.1
    means = play(answer, [new] * RECENT_TRIALS)
    assert abs(means[-1] - new) < 0.4


def test_a_sudden_change_leaves_the_record_as_slow_as_it_is() -> None:
    record = record_with(0.95)
    play(AnswerRates(record), [True] * 40 + [False] * RECENT_TRIALS)
    assert record.rank_chance(0, 0) > 0.9


@pytest.mark.parametrize("chance", [0.2, 0.7, 0.95])
def test_steady_text_is_not_taken_for_a_sudden_change(chance: float) -> None:
    """After a false alarm the estimate would jump to that of few trials."""
    rng = random.Random(3)
    answer = AnswerRates(record_with(chance))
    means = play(answer, (rng.random() < chance for _ in range(2000)))
    assert sum(abs(mean - chance) < 0.2 for mean in means) > 0.97 * len(means)


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.8])
def test_the_interval_holds_the_truth_most_of_the_time(chance: float) -> None:
    """About 80% of the time, where the text is as in earlier answers."""
    rng = random.Random(4)
    held = []
    for _ in range(300):
        answer = AnswerRates(record_with(chance))
        play(answer, (rng.random() < chance for _ in range(20)))
        interval = answer.first()
        assert 0 <= interval.low <= interval.mean <= interval.high <= 1
        held.append(interval.low <= chance <= interval.high)
    assert sum(held) / len(held) > 0.75


def test_the_interval_narrows_with_the_trials() -> None:
    answer = AnswerRates(HitRates())
    widths = []
    for _ in range(4):
        interval = answer.first()
        widths.append(interval.high - interval.low)
        play(answer, [True, False] * 5)
    assert widths[0] > widths[1] > widths[2] > widths[3]


def test_tokens_of_plain_rounds_count_as_first_choices() -> None:
    """The draft, asked later, says which of them it would have guessed."""
    record, second_record = HitRates(), HitRates()
    asked, drafted = AnswerRates(record), AnswerRates(second_record)
    asked.count_agreement(3, 2)
    play(drafted, [True, True, True, False, False])
    assert asked.first() == drafted.first()
    for name in ("by_level", "by_rank", "by_confidence"):
        assert counts(getattr(record, name)) == counts(getattr(second_record, name))
    asked.count_agreement(0, 20)
    assert asked.first().mean < 0.2


def test_tokens_after_a_second_choice_have_a_table_of_their_own() -> None:
    record = HitRates()
    for _ in range(100):
        answer = AnswerRates(record)
        answer.count(FORK, (0,))
        answer.count(FORK, (1, 3))
    after_first, after_second = AnswerRates(record).chances(record.rank_chance(0, 0))
    assert after_first[1][0] < 0.2
    assert after_second[1][0] > 0.9


def test_where_first_choices_are_rarer_they_are_after_a_second_choice_as_well() -> None:
    """There are few trials of those."""
    answer = AnswerRates(record_with(0.9))
    usual, rarer = (answer.chances(first)[1][1][0] for first in (answer.first().mean, 0.3))
    assert rarer < 0.5 < usual
    # But other ranks have trials of their own.
    assert answer.chances(0.3)[0][0][1] == pytest.approx(answer.chances(0.6)[0][0][1])


def random_answer(seed: int) -> AnswerRates:
    """After some earlier answers, with hits of random levels that may contradict the ranks."""
    rng = random.Random(seed)
    record = HitRates()
    for _ in range(rng.choice([0, 3, 300])):
        level = (rng.randrange(2), rng.randrange(MAX_DEPTH), rng.randrange(RANKS))
        record.count([(level, rng.random() < rng.choice([0.05, 0.5, 0.95]))])
    answer = AnswerRates(record)
    for _ in range(rng.choice([0, 2, 60])):
        answer.count(FORK, rng.choice([(), (0,), (1,), (0, 2), (1, 3)]))
    return answer


@pytest.mark.parametrize("first", [0.0, 0.01, 0.4, 0.97, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_chances_never_rise_with_the_rank_and_add_up_to_1_at_most(seed: int, first: float) -> None:
    tables = random_answer(seed).chances(first)
    assert len(tables) == 2
    for table in tables:
        assert len(table) == MAX_DEPTH
        for row in table:
            assert len(row) == RANKS
            assert all(isfinite(chance) and chance >= 0 for chance in row)
            assert row == sorted(row, reverse=True)
            assert sum(row) <= 1 + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_more_correct_first_choices_make_every_first_choice_likelier(seed: int) -> None:
    answer = random_answer(seed)
    tables = [answer.chances(first) for first in (0.1, 0.3, 0.6, 0.9)]
    for branch in range(2):
        for depth in range(MAX_DEPTH):
            firsts = [table[branch][depth][0] for table in tables]
            assert firsts == sorted(firsts)


def test_a_rank_that_is_right_more_often_than_a_better_one_is_held_down() -> None:
    record = HitRates()
    for _ in range(50):
        AnswerRates(record).count(FORK, (1, 3))
    row = AnswerRates(record).chances(record.rank_chance(0, 0))[0][0]
    assert row[0] == row[1] < 0.1


def test_a_more_confident_draft_is_right_more_often_before_any_trial() -> None:
    answer = AnswerRates(HitRates())
    values = [0.0, *CONFIDENCE_EDGES, 1.0]
    chances = [answer.confidence_chance(value) for value in values]
    assert chances == sorted(chances)
    assert sorted(set(chances)) == pytest.approx(CONFIDENCE_PRIOR)
    assert answer.confidence_chance(0.29) == answer.confidence_chance(0.0)
    assert answer.confidence_chance(0.3) > answer.confidence_chance(0.29)


def test_confidence_counts_down_to_the_first_wrong_token() -> None:
    record = HitRates()
    answer = AnswerRates(record)
    answer.count_confidence([0.9, 0.6, 0.4, 0.1], 2)  # 0.9 and 0.6 right, 0.4 wrong, 0.1 unknown
    answer.count_confidence([0.99], 1)
    answer.count_confidence([], 0)
    expected = {4: (1, 1), 2: (1, 1), 1: (1, 0), 5: (1, 1)}
    assert counts(record.by_confidence) == expected
    assert answer.confidence_chance(0.9) > CONFIDENCE_PRIOR[4]
    assert answer.confidence_chance(0.4) < CONFIDENCE_PRIOR[1]
    assert answer.confidence_chance(0.1) == pytest.approx(CONFIDENCE_PRIOR[0])


def test_an_answer_learns_how_sure_the_draft_may_be_and_the_record_keeps_it() -> None:
    record = HitRates()
    answer = AnswerRates(record)
    for _ in range(60):
        answer.count_confidence([0.99], 0)
    assert answer.confidence_chance(0.99) < 0.1
    assert AnswerRates(record).confidence_chance(0.99) < 0.1
    assert answer.confidence_chance(0.9) == pytest.approx(CONFIDENCE_PRIOR[4])
