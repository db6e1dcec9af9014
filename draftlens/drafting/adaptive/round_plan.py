"""The tree of a round, level by level: what each level is expected to bring and to cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from draftlens.core.tree import EMPTY, ROOT, Topology, cut
from draftlens.drafting.adaptive.tree_search import Chances, TreePlan, level_widths

Seconds = Callable[[int], float]
"""Maps a number of nodes to the seconds of a forward over them."""


@dataclass(frozen=True)
class RoundPlan:
    """A tree with the expected gains and costs of its levels.

    Entry d of each list belongs to the tree cut to depth d, entry 0 to plain decoding.

    Args:
        tree: the largest tree of the round.
        hits: draft tokens of level d that are expected to be correct; 0 for level 0.
        first_chances: the chance that the first choices of all levels down to d are correct.
        draft_seconds: seconds of the draft forwards for the levels down to d.
        check_seconds: seconds of the verification.
    """

    tree: Topology
    hits: tuple[float, ...]
    first_chances: tuple[float, ...]
    draft_seconds: tuple[float, ...]
    check_seconds: tuple[float, ...]

    @classmethod
    def of(cls, tree: Topology, chances: Chances, check: Seconds, level: Seconds) -> RoundPlan:
        """The plan of a tree.

        Args:
            tree: of the round.
            chances: that draft tokens are correct; the last depth stands for all below it.
            check: seconds of a verification by number of draft tokens.
            level: seconds of a draft forward by number of nodes.
        """
        hits = [0.0] * (tree.depth + 1)
        nodes = [0] * (tree.depth + 1)
        chance_of = {ROOT: 1.0}
        branch_of = {ROOT: 0}
        deepest = len(chances[0]) - 1
        for parent, children in tree.children.items():
            depth = 0 if parent == ROOT else tree.depths[parent]
            row = chances[branch_of[parent]][min(depth, deepest)]
            for rank, node in enumerate(children):
                chance_of[node] = chance_of[parent] * row[rank]
                branch_of[node] = min(rank, 1)
                hits[depth + 1] += chance_of[node]
                nodes[depth + 1] += 1
        firsts = [chances[0][min(depth, deepest)][0] for depth in range(tree.depth)]
        return cls(
            tree=tree,
            hits=tuple(hits),
            first_chances=tuple(accumulate(firsts, lambda a, b: a * b, initial=1.0)),
            draft_seconds=tuple(accumulate(map(level, level_widths(tree)), initial=0.0)),
            check_seconds=tuple(check(count) for count in accumulate(nodes)),
        )

    @property
    def plain_seconds(self) -> float:
        """Seconds of a round of plain decoding."""
        return self.check_seconds[0]

    def best_cut(self) -> TreePlan:
        """The cut of the tree with the most expected tokens per second."""
        best = TreePlan(EMPTY, 1 / self.plain_seconds)
        tokens = 1.0
        for depth in range(1, self.tree.depth + 1):
            tokens += self.hits[depth]
            rate = tokens / (self.draft_seconds[depth] + self.check_seconds[depth])
            if rate > best.tokens_per_second:
                best = TreePlan(cut(self.tree, depth), rate)
        return best

    def speedup(self, depth: int, decline: float = 1.0) -> float:
        """Tokens per second of rounds of this depth, relative to plain decoding.

        Args:
            depth: of the rounds.
            decline: factor by which the chances are smaller at every level.
        """
        tokens = 1.0 + sum(self.hits[d] * decline**d for d in range(1, depth + 1))
        return tokens * self.plain_seconds / (self.draft_seconds[depth] + self.check_seconds[depth])

    def best_speedup(self, chance: float) -> float:
        """Tokens per second of the best cut of a chain, relative to plain decoding, if every guess
        is correct with this chance, given that those before it are."""
        best = tokens = power = 1.0
        for drafting, checking in zip(self.draft_seconds[1:], self.check_seconds[1:], strict=True):
            power *= chance
            tokens += power
            best = max(best, tokens * self.plain_seconds / (drafting + checking))
        return best

    def loss(self, depth: int) -> float:
        """Seconds by which a round of this depth takes longer than a plain one: what is lost if
        all guesses are wrong."""
        return self.draft_seconds[depth] + self.check_seconds[depth] - self.plain_seconds

    def affordable_depth(self, allowance: float) -> int:
        """The depth of the largest cut of the tree that may lose this many seconds at most."""
        depth = self.tree.depth
        while depth and self.loss(depth) > allowance:
            depth -= 1
        return depth


class Growth:
    """The levels of a round while the draft grows them.

    The draft's confidence in its first choices moves the expected hits of the levels: those below
    a doubtful token are less likely correct. A level is worth its cost if the tokens that it is
    expected to bring would take longer to make in other rounds.

    Args:
        plan: of the round.
        rate: tokens per second that other rounds make.
        depth: of the largest tree that is allowed.
    """

    def __init__(self, plan: RoundPlan, rate: float, depth: int) -> None:
        self.plan = plan
        self.rate = rate
        self.limit = depth
        self.depth = 0
        self._chance = 1.0
        self._hits = 0.0
        self._best = -rate * plan.check_seconds[0]
        self._best_depth = 0

    @property
    def best_depth(self) -> int:
        """How many of the grown levels are worth verifying."""
        return self._best_depth

    def grow(self, chance: float) -> None:
        """Count a level whose first choice is correct with this chance, given that those above it
        are."""
        plan = self.plan
        self.depth += 1
        self._chance *= chance
        self._hits += plan.hits[self.depth] * self._scale
        value = self._hits - self.rate * plan.check_seconds[self.depth]
        if value > self._best or self._best_depth == 0:
            self._best = value
            self._best_depth = self.depth

    def goes_on(self) -> bool:
        """Whether a deeper level is expected to be worth its cost."""
        plan = self.plan
        scale = self._scale
        hits = self._hits
        best = -inf
        for depth in range(self.depth + 1, self.limit + 1):
            hits += plan.hits[depth] * scale
            drafting = plan.draft_seconds[depth] - plan.draft_seconds[self.depth]
            best = max(best, hits - self.rate * (plan.check_seconds[depth] + drafting))
        return best > self._best

    @property
    def _scale(self) -> float:
        expected = self.plan.first_chances[self.depth]
        return self._chance / expected if expected else 0.0


PLAIN = RoundPlan(EMPTY, (0.0,), (1.0,), (0.0,), (1.0,))
"""A plan that drafts nothing."""
