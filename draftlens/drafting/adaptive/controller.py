"""Chooses the draft tree of each round while an answer is made.

The choice follows from what drafting and verifying cost (`live_costs`), how often draft tokens are
correct (`hit_rates`), and how much the answer may lose by trying something that does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from draftlens.core.locks import ForkLock
from draftlens.core.tree import EMPTY, ROOT, Topology, chain, cut
from draftlens.drafting.adaptive.acceptance_rates import AnswerRates, HitRates
from draftlens.drafting.adaptive.forward_costs import LiveCosts
from draftlens.drafting.adaptive.round_plan import PLAIN, Growth, RoundPlan, Seconds
from draftlens.drafting.adaptive.tree_search import TreePlan, best_tree, tokens_per_second

MAX_NODES = 48
"""Number of nodes of the largest tree."""
MAX_CHAIN = 20
"""Length of the longest chain."""
REPLAN_EVERY = 24
"""Most rounds between two choices of the best tree."""
MOVED = 0.04
"""Change of the chance of a first choice after which the best tree is chosen anew."""
MIN_GAIN = 1.02
"""Factor by which another tree must be faster to replace the chosen one: a change has a cost and
the estimate is uncertain."""
EXPLORED_SHARE = 0.02
"""Share of an answer's expected time in plain decoding that may be lost by drafting."""
USUAL_LENGTH = 64
"""Expected tokens of an answer before any was made."""
MAX_SAVINGS = 2.5
"""Most plain rounds of what drafting has gained that count as allowance, in the same answer or in
later ones: the text may have changed since."""
FIRST_LOOK = 8
"""Tokens that the draft must lack before it is asked about them, where drafting may pay; twice as
many after each time."""
LAST_LOOK = 64
"""The same where drafting hardly pays; texts change."""


@dataclass(frozen=True)
class Situation:
    """What the costs of a round depend on.

    Args:
        rows: rows of the batch, those that have ended included.
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
        target, draft: live costs of the models.
    """

    target: LiveCosts
    draft: LiveCosts

    def check(self, num_nodes: int, at: Situation) -> float:
        """Seconds to verify a tree."""
        return self.target.cost(at.rows * (num_nodes + 1), at.rows, at.context)

    def level(self, num_nodes: int, at: Situation) -> float:
        """Seconds of a draft forward over some nodes of one level."""
        return self.draft.cost(at.rows * at.views * num_nodes, at.rows, at.draft_context)

    def forwards(self, at: Situation) -> tuple[Seconds, Seconds]:
        """`check` and `level` as functions of the number of nodes."""
        return partial(self.check, at=at), partial(self.level, at=at)

    def most_nodes(self, at: Situation) -> int:
        """Nodes of the largest tree whose cost is known; 0 if that of one token a row is not."""
        return min(MAX_NODES, max(0, self.target.largest // at.rows - 1))


class Record:
    """What is known about a pair of models and a kind of prompt from earlier answers.

    It is shared by answers that are generated at the same time.

    Args:
        costs: of the pair.
        lock: to be held while the record is used; by default one of its own.

    Attributes:
        rates: how often draft tokens are correct.
        savings: allowance for explorations that earlier answers did not use, in plain rounds.
        usual_length: tokens of a usual answer.
    """

    def __init__(
        self,
        costs: Costs,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.costs = costs
        self.rates = HitRates()
        self.lock = lock or ForkLock()
        self.savings = 0.0
        self.usual_length = float(USUAL_LENGTH)


class TreeTuner:
    """Chooses the tree of every round of one answer (or batch of answers).

    A round that is not known to pay is an exploration. Explorations may cost what drafting has
    gained so far and `EXPLORED_SHARE` of the answer's expected time. The choices change how long an
    answer takes, never its tokens.

    The calls of a round are `tree`, then, unless that is empty, `caught_up` and `grown` for each
    level, and in any case `drafted` and `judged`.

    Args:
        record: what earlier answers of the pair have shown.

    Attributes:
        rounds: number of verified rounds.
        emitted: tokens of a row so far.
    """

    limit = chain(MAX_NODES)
    """At least as large as any chosen tree; caches are sized by it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.rates = AnswerRates(record.rates)
        self.rounds = 0
        self.emitted = 0.0
        self._at = Situation()
        self._tree = EMPTY
        self._plan = PLAIN
        self._rate = 1.0
        self._is_safe = False
        self._is_hopeful = True
        self._look_at = FIRST_LOOK
        self._growth = Growth(PLAIN, 1.0, 0)
        self._replan_at = 0
        self._planned_for = 0.0
        self._gained = 0.0  # seconds, compared with plain decoding
        self._drafting = 0.0  # seconds that the draft took in this round
        self._usual_length = 0.0
        self._needs_plain_round = False
        self._looks = False

    def tree(self, at: Situation) -> Topology:
        """The largest tree of the next round; `grown` may end its growth earlier."""
        with self.record.lock:
            self._at = at
            if not self.rounds:
                self._usual_length = min(self.record.usual_length, at.remaining)
            moved = abs(self.rates.first().mean - self._planned_for)
            if self.rounds >= self._replan_at or moved > MOVED:
                self._replan()
            self._looks = False
            if self._needs_plain_round:
                self._needs_plain_round = False
                return EMPTY
            costs = self.record.costs
            self._begin_growth(costs.level(at.pending, at) - costs.level(1, at))
            if not self._growth.limit:
                self._looks = self._may_look(at)
                return chain(1) if self._looks else EMPTY
            return cut(self._plan.tree, self._growth.limit)

    def caught_up(self, hits: int, misses: int) -> Topology:
        """The tree of the round after the draft has read the tokens that it lacked.

        It is another one than before if the draft was only asked about these tokens.

        Args:
            hits: how many of them the draft would have guessed.
            misses: how many not.
        """
        with self.record.lock:
            self.rates.count_agreement(hits, misses)
            if self._looks:
                self._looks = False
                self._look_at = min(2 * self._look_at, LAST_LOOK)
                self._replan()
                self._begin_growth(self.record.costs.level(self._at.pending, self._at))
            return cut(self._plan.tree, self._growth.limit)

    def grown(self, confidences: Sequence[float]) -> bool:
        """Whether the draft shall grow another level below the one that it has just grown.

        Args:
            confidences: of each running row, the draft's probability of its first choice.
        """
        with self.record.lock:
            chances = [self.rates.confidence_chance(value) for value in confidences]
            self._growth.grow(sum(chances) / max(len(chances), 1))
            return self._growth.goes_on()

    @property
    def kept_depth(self) -> int:
        """How many of the grown levels are worth verifying."""
        return self._growth.best_depth

    def drafted(self, widths: Sequence[int], seconds: float) -> None:
        """Record the time of drafting.

        Args:
            widths: new tokens of every forward, all rows together.
            seconds: of all of them.
        """
        if not widths:
            return
        with self.record.lock:
            at = self._at
            draft = self.record.costs.draft
            predicted = sum(draft.curve.cost(w, at.rows, at.draft_context) for w in widths)
            draft.record(max(widths), predicted, seconds)
            self._drafting = seconds

    def judged(
        self,
        topology: Topology,
        paths: Sequence[Sequence[int]],
        seconds: float,
        confidences: Sequence[Sequence[float]] = (),
    ) -> None:
        """Record that a tree was verified.

        Args:
            topology: the tree.
            paths: correct nodes of each running row.
            seconds: of the verification.
            confidences: of each running row, the draft's probability of its first choices by depth.
        """
        with self.record.lock:
            self.rounds += 1
            self._record_check(topology, seconds)
            for path in paths:
                self.rates.count(topology, path)
            for path, values in zip(paths, confidences, strict=False):
                self.rates.count_confidence(values, _first_choices(topology, path))
            tokens = 1 + sum(map(len, paths)) / max(len(paths), 1)
            self.emitted += tokens
            if self._drafting:  # the timings of plain rounds are noise here
                gained = tokens * self.record.costs.check(0, self._at)
                self._gained += gained - seconds - self._drafting
                self._drafting = 0.0

    def ended(self) -> None:
        """Count the answer in the record."""
        with self.record.lock:
            plain = self.record.costs.check(0, self._at)
            unused = self._gained / plain + EXPLORED_SHARE * self.emitted
            self.record.savings = min(max(self.record.savings + unused, 0.0), MAX_SAVINGS)
            self.record.usual_length += 0.25 * (self.emitted - self.record.usual_length)

    def _record_check(self, topology: Topology, seconds: float) -> None:
        at = self._at
        target = self.record.costs.target
        width = at.rows * (len(topology) + 1)
        was_trusted = target.trusted
        target.record(width, target.curve.cost(width, at.rows, at.context), seconds)
        if was_trusted and not target.trusted:
            self._gained = max(self._gained, 0.0)  # the answer is not to pay for a wrong curve
        if target.is_surprised:
            self._replan_at = self.rounds
            self._needs_plain_round = bool(topology) and not target.has_timing(at.rows)

    def _allowance(self) -> float:
        """Seconds that the answer may still lose."""
        plain = self.record.costs.check(0, self._at)
        expected = max(self._usual_length, self.emitted)
        gained = min(self._gained, MAX_SAVINGS * plain)
        return gained + (EXPLORED_SHARE * expected + self.record.savings) * plain

    def _may_look(self, at: Situation) -> bool:
        """Whether the draft shall be asked about the tokens that it lacks, of which there are
        enough, because drafting may pay after all."""
        if at.pending <= (self._look_at if self._is_hopeful else LAST_LOOK):
            return False
        return self.record.costs.level(at.pending, at) <= self._allowance()

    def _begin_growth(self, further: float) -> None:
        """Begin a round with the chosen tree, or what the allowance suffices for.

        Args:
            further: seconds that the draft needs besides those of the plan.
        """
        plan = self._plan
        depth = plan.tree.depth
        if not self._is_safe:
            # Half of it at a time, so that one wrong guess does not end all drafting.
            allowance = self._allowance() - further
            depth = plan.affordable_depth(allowance / 2)
            depth = depth or min(plan.affordable_depth(allowance), 1)
        self._growth = Growth(plan, self._rate, depth)

    def _replan(self) -> None:
        """Choose the best tree by what is known, and schedule the next choice."""
        costs = self.record.costs
        at = self._at
        check, level = costs.forwards(at)
        first = self.rates.first()
        chances = self.rates.chances(first.mean)
        most = costs.most_nodes(at)
        chains = RoundPlan.of(chain(min(MAX_CHAIN, most)), chances, check, level)
        best = max(chains.best_cut(), best_tree(chances, check, level, most), key=_rate)
        rate = tokens_per_second(self._tree, chances, check, level)
        if best.tokens_per_second > MIN_GAIN * rate or len(self._tree) > most:
            self._tree, rate = best
        plan = PLAIN
        if self._tree.depth < len(self._tree):
            plan = RoundPlan.of(self._tree, chances, check, level)
        elif self._tree:
            plan = chains
        decline = first.low / first.mean
        self._is_safe = bool(self._tree) and plan.speedup(self._tree.depth, decline) > 1
        self._is_hopeful = chains.best_speedup(first.high) > 1
        self._plan = plan
        self._rate = rate
        self._planned_for = first.mean
        self._replan_at = self.rounds + REPLAN_EVERY


def best_for(costs: Costs, chance: float) -> TreePlan:
    """The best chain or tree for one row, if first choices are right with this chance and other
    choices as often as usual."""
    at = Situation(context=costs.target.curve.context, draft_context=costs.draft.curve.context)
    check, level = costs.forwards(at)
    chances = AnswerRates(HitRates()).chances(chance)
    most = costs.most_nodes(at)
    chains = RoundPlan.of(chain(min(MAX_CHAIN, most)), chances, check, level)
    return max(chains.best_cut(), best_tree(chances, check, level, most), key=_rate)


def _rate(plan: TreePlan) -> float:
    return plan.tokens_per_second


def _first_choices(topology: Topology, path: Sequence[int]) -> int:
    """How many nodes of a path, from the first level down, are first choices."""
    parent = ROOT
    for depth, node in enumerate(path):
        if node != topology.children[parent][0]:
            return depth
        parent = node
    return len(path)
