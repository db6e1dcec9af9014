"""Chooses the draft tree of each round while an answer is made.

The choice follows from what drafting and verifying cost (`forward_costs`), how often draft tokens
are accepted (`acceptance_rates`), and how much the answer may lose by rounds that do not pay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

from draftlens.core.locks import ForkLock
from draftlens.core.tree import EMPTY, Topology, chain, cut
from draftlens.drafting.adaptive.costs import SURPRISE, Expectation, ForwardCosts
from draftlens.drafting.adaptive.round_plan import (
    EARLIER_WEIGHT,
    MAX_NODES,
    PLAIN,
    TREES,
    AcceptanceRates,
    RoundPlan,
    level_sizes,
)

PLAN_EVERY = 24
"""Most verified rows between two choices of the best tree, once drafting is known to pay."""
MOVED = 0.04
"""Change of the rate of first choices after which the best tree is chosen anew."""
EXPLORED_SHARE = 0.02
"""Share of an answer's expected time in plain decoding that may be lost by drafting."""
USUAL_LENGTH = 64
"""Expected tokens of a first answer before so many were made."""
LATEST_SHARE = 0.3
"""Share of the latest answer in the expected length of the next one."""
MAX_SAVINGS = 2.5
"""Cap on the savings carried over, in plain rounds, because older text predicts little. Where the
draft has to read a prompt first, they may rise to the cost of that."""
TRUST = 0.5
"""Factor of the savings that are expected of a draft whose rates are not known yet."""
TRIED_SHARE = 0.25
"""Share of the seconds of a prompt's reading, where that is expected to pay, that the answer may
lose besides, since the reading gains nothing if hardly anything is drafted afterwards."""
KEPT_SHARE = 0.5
"""Share of the seconds of a prompt's reading that count in an answer which later turns may follow,
as if every other answer were the last of its chat."""
FIRST_PROBE = 8
"""Tokens that a paused draft must lack before it reads them to compare them with its own, where
drafting may pay; twice as many after each time."""
LAST_PROBE = 64
"""The most, and the same where drafting hardly pays; texts change."""


@dataclass(frozen=True)
class RoundState:
    """What the costs of a round depend on.

    Args:
        rows: rows of the batch.
        context: cached tokens of the target's longest row.
        draft_context: cached tokens of the draft's longest row.
        pending: tokens that the draft has not read yet, of the row that has most.
        remaining: most tokens that a row may still gain.
        views: views of each row that the draft reads.
    """

    rows: int = 1
    context: int = 0
    draft_context: int = 0
    pending: int = 1
    remaining: int = 1 << 20
    views: int = 1


@dataclass(frozen=True)
class Costs:
    """What the forwards of a pair cost.

    Args:
        target, draft: costs of the models.
        chains_only: whether one of them takes no tree.
    """

    target: ForwardCosts
    draft: ForwardCosts
    chains_only: bool = False

    def check(self, num_nodes: int, at: RoundState) -> float:
        """Seconds to verify a tree."""
        return self.checks((num_nodes,), at)[0]

    def checks(self, sizes: Sequence[int], at: RoundState) -> list[float]:
        """Seconds to verify trees of these numbers of nodes, which rise."""
        widths = [at.rows * (num_nodes + 1) for num_nodes in sizes]
        return self.target.costs(widths, at.rows, at.context)

    def level(self, num_nodes: int, at: RoundState) -> float:
        """Seconds of a draft forward over some nodes of one level."""
        return self.draft.cost(at.rows * at.views * num_nodes, at.rows, at.draft_context)

    def best_plan(self, rates: AcceptanceRates, at: RoundState) -> tuple[RoundPlan, int]:
        """The plan and the depth with the most expected tokens per second; no tree is larger than
        the largest forward whose cost is known."""
        check = lru_cache(partial(self.check, at=at))
        level = lru_cache(partial(self.level, at=at))
        max_nodes = max(0, self.target.largest // at.rows - 1)
        trees = TREES[:1] if self.chains_only else TREES
        plans = [RoundPlan.of(tree, rates, check, level) for tree in trees]
        return max(
            (
                (plan, depth)
                for plan in plans
                for depth, size in enumerate(level_sizes(plan.tree))
                if size <= max_nodes
            ),
            key=lambda choice: choice[0].rate(choice[1]),
        )


class PairHistory:
    """What is known about a pair of models and a kind of prompt from earlier answers.

    Answers that are generated at the same time share it.

    Args:
        costs: of the pair.
        lock: to be held while the history is used; by default one of its own.

    Attributes:
        rates: of the latest answer.
        savings: what earlier answers have left for rounds that do not pay, in plain rounds.
        readings: seconds per token of the draft's latest prompts, with their vision. The first one
            may have prepared kernels.
        usual_length: expected tokens of a row.
        own_share: share of the tokens of earlier answers for which no other drafter proposed.
    """

    def __init__(self, costs: Costs, lock: AbstractContextManager[Any] | None = None) -> None:
        self.costs = costs
        self.rates = AcceptanceRates()
        self.lock = lock or ForkLock()
        self.savings = 0.0
        self.readings: deque[float] = deque(maxlen=2)
        self.usual_length = float(USUAL_LENGTH)
        self.own_share = 1.0

    def add_answer(self, length: float, own: float) -> None:
        """Record an answer's tokens, and those for which no other drafter proposed."""
        self.usual_length += LATEST_SHARE * (length - self.usual_length)
        self.own_share += LATEST_SHARE * (own / max(length, 1.0) - self.own_share)

    def reading_seconds(self, at: RoundState) -> float:
        """Seconds in which the draft reads its pending tokens in each row: the fewer of the latest
        two readings, since one that is called too slow is never tried again, or of one and the
        costs of forwards."""
        seconds = [each * at.rows * at.pending for each in self.readings]
        if len(seconds) < 2:
            seconds.append(self.costs.level(at.pending, at))
        return min(seconds)


class TreeController:
    """Chooses the tree of every round of one answer (or batch of answers).

    Rounds that are not known to pay may cost what drafting has gained so far and `EXPLORED_SHARE`
    of the answer's expected time. The choices change how long an answer takes, never its tokens.

    The calls of a round are `tree`, then, unless that is empty, `caught_up` and `grown` for each
    level, and in any case `drafted` and `judged`.

    Args:
        history: of the pair.

    Attributes:
        rounds: number of verified rounds.
        emitted: tokens of a row so far.
    """

    limit = chain(MAX_NODES)
    """At least as large as any chosen tree; caches are sized by it."""

    def __init__(self, history: PairHistory) -> None:
        self.history = history
        with history.lock:
            history.rates = self.rates = AcceptanceRates(history.rates)
            self._saved = history.savings
        self.rounds = 0
        self.emitted = 0.0
        self._own = 0.0  # of these tokens, those for which no other drafter proposed
        self._at = RoundState()
        self._usual_length = 0.0
        self._plan, self._best_depth = PLAIN, 0
        self._pays = False
        self._rows_until_plan = 0
        self._planned_for = 0.0  # rate of first choices
        self._depth = 0  # of the largest tree in this round
        self._grown = 0
        self._probability = 1.0  # of the first choices down to the grown level
        self._gained = 0.0  # seconds, compared with plain decoding
        self._drafting = 0.0  # seconds that the draft took in this round
        self._probe_at = FIRST_PROBE
        self._is_probe = False
        self._times_plain = False
        self._is_read = False  # whether prompts have been read since the last refusal
        self._refused_rows = 0  # rows at the last refusal
        self._read_at = 0.0  # tokens at which reading the draft's prompt is considered again
        self._reading = 0.0  # seconds that this takes
        self._tried = 0.0  # seconds that may be lost since it was read

    @property
    def kept_depth(self) -> int:
        """How many of the grown levels are verified."""
        return self._grown

    def may_read(self, at: RoundState, is_kept: bool = False) -> bool:
        """Whether the draft reads its prompts now, or, where rows have joined others whose prompts
        it has read, those of the new ones.

        With known costs: true if a tree or a probe may be tried afterwards and drafting is expected
        to save more time in the rest of this answer than reading all prompts costs, also those that
        were read: rows that leave are followed by others. Of tokens that another drafter proposes
        none is saved. The optimistic acceptance rate counts until the rate is known, and later
        where the answer may lose the time. After a refusal it is false for `PLAN_EVERY` tokens, or
        for those of an answer where prompts were read, unless half of the rows have left.

        Args:
            is_kept: whether later turns may begin with what is read, so that less of it has to pay
                in this answer.
        """
        with self.history.lock:
            costs = self.history.costs
            if not (costs.target.is_measured and costs.draft.is_measured):
                return True
            planned_rows, self._at = self._at.rows, at
            if not self.rounds:
                self._usual_length = min(self.history.usual_length, at.remaining)
            if self.emitted < self._read_at and 2 * at.rows > self._refused_rows:
                return False
            if self._rows_until_plan <= 0 or at.rows != planned_rows:
                self._choose_plan()
            if self._may_read(at, is_kept):
                return True
            self._read_at = self.emitted + (self._usual_length if self._is_read else PLAN_EVERY)
            self._is_read, self._refused_rows = False, at.rows
            return False

    def _may_read(self, at: RoundState, is_kept: bool) -> bool:
        usual = self._usual_length
        rest = usual if self._is_read else max(usual - self.emitted, self.emitted)
        own = PLAN_EVERY * self.history.own_share + self._own
        tokens = min(rest, at.remaining) * own / (PLAN_EVERY + self.emitted)
        self._reading = (KEPT_SHARE if is_kept else 1.0) * self.history.reading_seconds(at)
        is_expected = self._reading < tokens * self._trusted_gain()
        self._tried = TRIED_SHARE * self._reading if is_expected else 0.0
        explored = 0.0 if is_expected or not self._is_known else self._reading
        self._limit_depth(explored)
        probing = explored + self.history.costs.level(FIRST_PROBE + 1, at)
        may_try = self._depth > 0 or probing <= self._allowance()
        if not is_expected:
            is_hoped = self._reading < tokens * self._hoped_gain()
            may_try = may_try and is_hoped and explored <= self._allowance()
        if may_try:
            self._saved -= explored / self.history.costs.check(0, at)
        return may_try

    @property
    def _is_known(self) -> bool:
        """Whether the rates are those of earlier answers."""
        return self.rates.trials >= EARLIER_WEIGHT

    def expected(self, at: RoundState) -> Expectation:
        """The expected result of the next round, the draft's reading of what it lacks included."""
        with self.history.lock:
            self._at = at
            if self._rows_until_plan <= 0:
                self._choose_plan()
            tokens = self._plan.tokens[self._best_depth]
            seconds = tokens / self._plan.rate(self._best_depth)
            if self._best_depth:
                costs = self.history.costs
                seconds += costs.level(at.pending, at) - costs.level(1, at)
            return Expectation(tokens, seconds)

    def passed(self, tokens: Sequence[int]) -> None:
        """Record the tokens of each running row in a round in which another drafter proposed."""
        with self.history.lock:
            self._rows_until_plan -= len(tokens)
            self.emitted += sum(tokens) / max(len(tokens), 1)

    def has_read(self, num_tokens: int, seconds: float) -> None:
        """Record how long the draft took to read this number of prompt tokens."""
        with self.history.lock:
            self._is_read = True
            self.history.readings.append(seconds / num_tokens)

    def tree(self, at: RoundState) -> Topology:
        """The largest tree of the next round; `grown` may end its growth earlier."""
        with self.history.lock:
            self._at = at
            if not self.rounds:
                self._usual_length = min(self.history.usual_length, at.remaining)
            moved = abs(self.rates.ranks[0].mean - self._planned_for)
            if self._rows_until_plan <= 0 or moved > MOVED or not self._pays:
                self._choose_plan()
            if self._times_plain:
                self._times_plain = False
                return EMPTY
            costs = self.history.costs
            catching_up = costs.level(at.pending, at)
            self._limit_depth(catching_up - costs.level(1, at))
            self._is_probe = not self._depth and self._may_probe(at.pending, catching_up)
            return chain(1) if self._is_probe else cut(self._plan.tree, self._depth)

    def caught_up(self, hits: int, misses: int) -> Topology:
        """The tree of the round after the draft has read the tokens that it lacked.

        Args:
            hits: how many of them the draft would have proposed.
            misses: how many not.
        """
        with self.history.lock:
            for accepted in [True] * hits + [False] * misses:
                self.rates.add_first_choice(accepted)
            if self._is_probe:
                self._probe_at = min(2 * self._probe_at, LAST_PROBE)
                self._choose_plan()
                self._limit_depth(self.history.costs.level(self._at.pending, self._at))
            return cut(self._plan.tree, self._depth)

    def grown(self, confidences: Sequence[float]) -> bool:
        """Whether the draft shall grow another level below the one that it has just grown.

        Args:
            confidences: of each running row, the draft's probability of its first choice.
        """
        self._grown += 1
        self._probability *= sum(confidences) / max(len(confidences), 1)
        rate = self._plan.rate(self._best_depth)
        return self._plan.gain_below(self._grown, self._depth, self._probability, rate) > 0

    def further(self, chances: Sequence[Sequence[float]]) -> tuple[int, float]:
        """How many further tokens, which cost no forward of the draft, pay after the first choices
        of the grown levels, and how many seconds they are expected to save.

        Args:
            chances: of each running row, the probability that each of its tokens is accepted if
                those choices are.
        """
        with self.history.lock:
            costs, at, depth = self.history.costs, self._at, self._grown
            num_nodes = len(cut(self._plan.tree, depth))
            longest = max(map(len, chances), default=0)
            most = max(min(longest, costs.target.largest // at.rows - 1 - num_nodes), 0)
            gained = [
                self._probability * sum(row[n] for row in chances if len(row) > n) / len(chances)
                for n in range(most)
            ]
            tokens = accumulate(gained, initial=self._plan.tokens[depth])
            checks = costs.checks(range(num_nodes, num_nodes + most + 1), at)
            drafting = self._plan.draft_seconds[depth]
            rounds = [Expectation(t, drafting + s) for t, s in zip(tokens, checks, strict=True)]
            count = max(range(most + 1), key=lambda n: rounds[n].speed())
            return count, rounds[count].tokens / rounds[0].speed() - rounds[count].seconds

    def drafted(self, widths: Sequence[int], seconds: float) -> None:
        """Record the time of drafting.

        Args:
            widths: new tokens of every forward, all rows together.
            seconds: of all of them.
        """
        if not widths:
            return
        with self.history.lock:
            at = self._at
            draft = self.history.costs.draft
            predicted = sum(draft.curve.cost(w, at.rows, at.draft_context) for w in widths)
            draft.record(max(widths), predicted, seconds)
            self._drafting = seconds

    def judged(
        self,
        topology: Topology,
        paths: Sequence[Sequence[int]],
        seconds: float,
        num_further: int = 0,
    ) -> None:
        """Record that a tree was verified.

        Args:
            topology: the tree.
            paths: accepted nodes of each running row. Those that are not in the tree are of
                tokens that were verified after it.
            seconds: of the verification.
            num_further: number of those tokens, accepted or not, in each row.
        """
        with self.history.lock:
            self.rounds += 1
            self._rows_until_plan -= len(paths)
            self._record_check(topology, len(topology) + num_further, seconds)
            for path in paths:
                self.rates.count(topology, path)
            tokens = 1 + sum(map(len, paths)) / max(len(paths), 1)
            self.emitted += tokens
            self._own += tokens
            if self._drafting:  # the timings of plain rounds are noise here
                gained = tokens * self.history.costs.check(0, self._at)
                self._gained += gained - seconds - self._drafting
                self._drafting = 0.0

    def ended(self) -> None:
        """Leave to later answers what this one has not lost."""
        with self.history.lock:
            plain = self.history.costs.check(0, self._at)
            unused = self._saved + self._gained / plain + EXPLORED_SHARE * self.emitted
            self.history.savings = min(max(unused, 0.0), self._most_savings(plain))
            self.history.add_answer(self.emitted, self._own)

    def _record_check(self, topology: Topology, num_nodes: int, seconds: float) -> None:
        at = self._at
        target = self.history.costs.target
        width = at.rows * (num_nodes + 1)
        # Gains are relative to plain rounds, so one of them is timed where the curve may be wrong.
        is_slow = seconds > SURPRISE * target.cost(width, at.rows, at.context)
        is_doubtful = is_slow or at.rows not in target.curve.widths
        self._times_plain = bool(topology) and is_doubtful and not target.has_timing(at.rows)
        was_trusted = target.trusted
        target.record(width, target.curve.cost(width, at.rows, at.context), seconds)
        if was_trusted and not target.trusted:
            self._gained = max(self._gained, 0.0)  # the answer is not to pay for a wrong curve

    def _choose_plan(self) -> None:
        self._plan, self._best_depth = self.history.costs.best_plan(self.rates, self._at)
        self._pays = self._plan.rate(self._best_depth, self.rates.caution) > self._plan.rate(0)
        self._rows_until_plan = PLAN_EVERY
        self._planned_for = self.rates.ranks[0].mean

    def _limit_depth(self, further: float) -> None:
        """Begin a round with the best tree, or with what the allowance suffices for.

        Args:
            further: seconds that the draft needs besides those of the plan.
        """
        self._grown, self._probability = 0, 1.0
        self._depth = self._best_depth
        if not self._pays:
            allowance = self._allowance() - further - self._reserve()
            # Half of it at a time, so that one bad round does not end all drafting.
            while self._depth > 1 and self._plan.loss(self._depth) > allowance / 2:
                self._depth -= 1
            if self._plan.loss(self._depth) > allowance:
                self._depth = 0

    def _reserve(self) -> float:
        """Seconds that are left to a probe, which shows after a bad start whether drafting pays for
        the prompt that was read."""
        if not self._tried or self._usual_length - self.emitted < 2 * FIRST_PROBE:
            return 0.0
        return self.history.costs.level(FIRST_PROBE + 1, self._at)

    def _may_probe(self, pending: int, seconds: float) -> bool:
        is_due = pending > self._probe_at and seconds <= self._allowance()
        return is_due and (pending > LAST_PROBE or self._hoped_gain() > 0)

    def _trusted_gain(self) -> float:
        """Seconds by which a token of the best plan is expected to be cheaper than a plain one."""
        trust = 1.0 if self._is_known else TRUST
        return trust * (1 / self._plan.rate(0) - 1 / self._plan.rate(self._best_depth))

    def _hoped_gain(self) -> float:
        """Seconds by which a token of a chain would be cheaper than a plain one at that bound, at
        most; below zero if it would not."""
        costs = self.history.costs
        check, level = partial(costs.check, at=self._at), partial(costs.level, at=self._at)
        plan = RoundPlan.of(TREES[0], self.rates, check, level)
        best = max(plan.rate(depth, self.rates.hope) for depth in range(1, plan.tree.depth + 1))
        return 1 / plan.rate(0) - 1 / best

    def _allowance(self) -> float:
        """Seconds that the answer may still lose."""
        plain = self.history.costs.check(0, self._at)
        gained = min(self._saved + self._gained / plain, self._most_savings(plain))
        explored = EXPLORED_SHARE * max(self._usual_length, self.emitted)
        return plain * (gained + explored) + self._tried

    def _most_savings(self, plain: float) -> float:
        return max(MAX_SAVINGS, self._reading / plain)


def best_for(costs: Costs, rate: float) -> tuple[Topology, float]:
    """The best tree for one row and its tokens per second, if first choices are accepted at this
    rate and other choices as often as usual."""
    rates = AcceptanceRates()
    for rank in rates.ranks[1:]:
        rank.mean = min(rank.mean, rate)
    rates.ranks[0].mean = rate
    at = RoundState(context=costs.target.curve.context, draft_context=costs.draft.curve.context)
    plan, depth = costs.best_plan(rates, at)
    return cut(plan.tree, depth), plan.rate(depth)
