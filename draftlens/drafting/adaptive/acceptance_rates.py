"""How often draft tokens are correct: by depth and rank, and by the draft's own confidence."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from draftlens.core.tree import ROOT, Topology

MAX_DEPTH = 8
RANKS = 4
PRIOR = (0.8, 0.08, 0.03, 0.015)
"""Chances by rank before anything is measured."""
CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95)
"""Bounds of the bins of confidence: the draft's probability of its own first choice."""
CONFIDENCE_PRIOR = (0.25, 0.42, 0.58, 0.72, 0.85, 0.95)
"""Chances by bin before anything is measured: drafts are a little too sure of themselves."""
PRIOR_WEIGHT = 3.0
"""Trials that a prior counts for, and a record of all depths for one of them."""
RECORD_WEIGHT = 8.0
"""Most trials that the record of earlier answers counts for in a new answer, whose text may be
easier or harder."""
MAX_TRIALS = 400.0
"""A record forgets what is older than about so many trials."""
ANSWER_TRIALS = 40.0
"""An answer forgets what is older than about so many trials, because its text changes."""
RECENT_TRIALS = 8
"""Latest first choices that show a sudden change."""
SUDDEN = 3.5
"""Standard deviations by which the latest first choices differ after a sudden change."""

Level = tuple[int, int, int]
"""(branch, depth, rank); the branch is 1 where the token before was not the draft's first choice,
else 0."""


@dataclass
class Tally:
    """Trials and hits, old ones counting less.

    Args:
        trials: weighted number of trials.
        hits: weighted number of hits.
    """

    trials: float = 0.0
    hits: float = 0.0

    def add(self, hit: bool, most: float) -> None:
        """Count a trial; all earlier ones together count for `most` trials at most."""
        kept = min(1.0, (most - 1) / self.trials) if self.trials else 1.0
        self.trials = kept * self.trials + 1
        self.hits = kept * self.hits + hit

    def share(self, prior: float, weight: float) -> float:
        """The share of hits, with a prior that counts for some trials."""
        return (self.hits + weight * prior) / (self.trials + weight)


class Tallies(dict[Hashable, Tally]):
    """Tallies by key; a missing one is empty and is not added by reading."""

    def __missing__(self, key: Hashable) -> Tally:
        return Tally()

    def add(self, key: Hashable, hit: bool, most: float) -> None:
        """Count a trial of a key; see `Tally.add`."""
        self.setdefault(key, Tally()).add(hit, most)


@dataclass(frozen=True)
class Interval:
    """A chance and how uncertain it is.

    Args:
        mean: the estimate.
        low, high: bounds that hold with a probability of about 80%.
    """

    mean: float
    low: float
    high: float


class HitRates:
    """Counts of one pair of models and one kind of prompt, over all answers."""

    def __init__(self) -> None:
        self.by_level = Tallies()
        self.by_rank = Tallies()
        self.by_confidence = Tallies()

    def count(self, trials: Iterable[tuple[Level, bool]]) -> None:
        """Count verified draft tokens."""
        for level, hit in trials:
            branch, _, rank = level
            self.by_level.add(level, hit, MAX_TRIALS)
            self.by_rank.add((branch, rank), hit, MAX_TRIALS)

    def count_confidence(self, bins: Iterable[tuple[int, bool]]) -> None:
        """Count first choices by the bin of their confidence."""
        for index, hit in bins:
            self.by_confidence.add(index, hit, MAX_TRIALS)

    def rank_chance(self, branch: int, rank: int) -> float:
        """The chance of a rank, all depths together."""
        prior = PRIOR[rank] if branch == 0 else self.rank_chance(0, rank)
        return self.by_rank[branch, rank].share(prior, PRIOR_WEIGHT)

    def level_chance(self, branch: int, depth: int, rank: int) -> float:
        """The chance of a rank at a depth."""
        return self.by_level[branch, depth, rank].share(
            self.rank_chance(branch, rank), PRIOR_WEIGHT
        )

    def confidence_chance(self, index: int) -> float:
        """The chance of a first choice with a confidence in a bin."""
        return self.by_confidence[index].share(CONFIDENCE_PRIOR[index], PRIOR_WEIGHT)


class AnswerRates:
    """Chances during one answer: the record of earlier answers, moved by what this one shows.

    Args:
        record: of the pair and the kind of prompt; it is counted in, too.
    """

    def __init__(self, record: HitRates) -> None:
        self.record = record
        self._start = {
            (branch, rank): record.rank_chance(branch, rank)
            for branch in range(2)
            for rank in range(RANKS)
        }
        # By branch, depth and rank: how the odds at a depth differ from those of all depths.
        self._profile = [
            [
                [
                    _odds(record.level_chance(branch, depth, rank)) / _odds(expected)
                    for rank in range(RANKS)
                    for expected in [self._start[branch, rank]]
                ]
                for depth in range(MAX_DEPTH)
            ]
            for branch in range(2)
        ]
        self._known_trials = min(record.by_rank[0, 0].trials, RECORD_WEIGHT)
        self._weight = max(self._known_trials, PRIOR_WEIGHT)
        self._recent: deque[bool] = deque(maxlen=RECENT_TRIALS)
        self._by_rank = Tallies()
        self._by_confidence = Tallies()

    def count(self, topology: Topology, path: Sequence[int]) -> None:
        """Count the result of one row's verification.

        Only the children of correct nodes count, and those of the root.

        Args:
            topology: the verified tree.
            path: its correct nodes, from the first level down; empty if none is correct.
        """
        trials = list(_trials(topology, path))
        self.record.count(trials)
        for (branch, _, rank), hit in trials:
            self._by_rank.add((branch, rank), hit, ANSWER_TRIALS)
            if branch == rank == 0:
                self._notice(hit)

    def count_agreement(self, hits: int, misses: int) -> None:
        """Count tokens of the target that the draft, asked later, would have guessed or not."""
        for hit in [True] * hits + [False] * misses:
            self.record.count([((0, 0, 0), hit)])
            self._by_rank.add((0, 0), hit, ANSWER_TRIALS)
            self._notice(hit)

    def count_confidence(self, confidences: Sequence[float], num_correct: int) -> None:
        """Count the first choices along one path.

        Args:
            confidences: by depth.
            num_correct: how many of them are correct, before the first that is not.
        """
        judged = confidences[: num_correct + 1]
        bins = [(_bin(value), depth < num_correct) for depth, value in enumerate(judged)]
        self.record.count_confidence(bins)
        for index, hit in bins:
            self._by_confidence.add(index, hit, ANSWER_TRIALS)

    def first(self) -> Interval:
        """The chance of a first choice, all depths together."""
        tally = self._by_rank[0, 0]
        mean = tally.share(self._start[0, 0], self._weight)
        trials = tally.trials + self._known_trials
        spread = 1.3 * sqrt(max(mean * (1 - mean), 0.05) / (trials + 0.5))
        return Interval(mean, max(mean - spread, 0.0), min(mean + spread, 1.0))

    def _notice(self, hit: bool) -> None:
        """Forget all but the latest first choices where they show that the text has changed."""
        self._recent.append(hit)
        if len(self._recent) < RECENT_TRIALS:
            return
        tally = self._by_rank[0, 0]
        earlier = Tally(
            max(tally.trials - RECENT_TRIALS, 0.0), max(tally.hits - sum(self._recent), 0.0)
        )
        expected = min(earlier.share(self._start[0, 0], self._weight), 1.0)
        share = sum(self._recent) / RECENT_TRIALS
        shares = 1 / RECENT_TRIALS + 1 / (earlier.trials + self._weight)
        deviation = sqrt(max(expected * (1 - expected), 0.01) * shares)
        if abs(share - expected) > SUDDEN * deviation:
            self._by_rank[0, 0] = Tally(RECENT_TRIALS, sum(self._recent))
            self._weight = 4.0
            self._known_trials = 0.0

    def chances(self, first: float) -> list[list[list[float]]]:
        """Chances that draft tokens are correct (`drafting.adaptive.tree_search.Chances`).

        Tokens after a second choice have a table of their own: the token that was hard to predict
        is settled there, so the next one is often easier.

        Args:
            first: chance of a first choice, all depths together, from `first`.
        """
        tables = []
        for branch in range(2):
            ranks = [self._rank_chance(branch, rank, first) for rank in range(RANKS)]
            tables.append([self._row(branch, depth, ranks) for depth in range(MAX_DEPTH)])
        return tables

    def confidence_chance(self, confidence: float) -> float:
        """The chance of a first choice of which the draft is this sure."""
        index = _bin(confidence)
        expected = self.record.confidence_chance(index)
        return self._by_confidence[index].share(expected, PRIOR_WEIGHT)

    def _rank_chance(self, branch: int, rank: int, first: float) -> float:
        expected = self._start[branch, rank]
        if branch == rank == 0:
            return first
        chance = self._by_rank[branch, rank].share(expected, self._weight)
        if rank:
            return chance
        # Few trials: where first choices are rarer than expected, they are here, too.
        return _with_odds(chance, _odds(first) / _odds(self._start[0, 0]))

    def _row(self, branch: int, depth: int, ranks: Sequence[float]) -> list[float]:
        """Chances by rank at a depth: they never rise with the rank and add up to 1 at most."""
        row: list[float] = []
        left = least = 1.0
        for odds_ratio, chance in zip(self._profile[branch][depth], ranks, strict=True):
            least = min(_with_odds(chance, odds_ratio), left, least)
            left -= least
            row.append(least)
        return row


def _trials(topology: Topology, path: Sequence[int]) -> Iterable[tuple[Level, bool]]:
    parent = ROOT
    branch = 0
    for depth in range(min(len(path) + 1, topology.depth)):
        children = topology.children.get(parent, ())
        correct = path[depth] if depth < len(path) else ROOT
        for rank, child in enumerate(children[:RANKS]):
            yield (branch, min(depth, MAX_DEPTH - 1), rank), child == correct
        branch = 0 if correct in children[:1] else 1
        parent = correct


def _bin(confidence: float) -> int:
    return bisect_right(CONFIDENCE_EDGES, confidence)


def _odds(chance: float) -> float:
    return chance / (1 - chance) if chance < 1 else inf


def _with_odds(chance: float, ratio: float) -> float:
    """A chance after its odds were multiplied."""
    if not 0 < chance < 1:
        return chance
    odds = _odds(chance) * ratio
    return odds / (1 + odds) if odds < inf else 1.0
