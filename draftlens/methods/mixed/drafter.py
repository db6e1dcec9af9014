"""Two drafters for the same rows, which take turns; copied tokens may follow the model's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from draftlens.core.sequence import Batch
from draftlens.core.tree import ROOT, DraftTree, Topology, Verdict
from draftlens.decoding.plan import Drafter, TargetContext
from draftlens.drafting.adaptive.costs import CopiedRun, Expectation, Proposal
from draftlens.drafting.model_drafter import ModelDrafter

PRIOR_TOKENS = 16.0
"""Expected tokens that the prior of `Trust` counts as."""
PRIOR_TRUST = 0.8
FORGETTING = 0.9
"""Weight of a round relative to the next one."""


class CopyingDrafter(Drafter, Protocol):
    """A drafter whose proposals cost next to nothing and have measured chances, such as
    `LookupDrafter`."""

    def proposal(self, batch: Batch, budget: int) -> Proposal:
        """What `propose` returns, with its expected result."""
        ...

    def record(self, batch: Batch) -> None:
        """Receive that the latest proposal was verified; `read` follows."""
        ...

    def read(self, batch: Batch) -> tuple[float, int]:
        """Receive the tokens of a round, whichever drafter proposed. Returns how many tokens of all
        rows the latest proposal was expected to have, and how many it had."""
        ...

    def runs_after(
        self, batch: Batch, drafted: Sequence[Sequence[int]], length: int
    ) -> Sequence[CopiedRun]:
        """What may be copied in each row after draft tokens of another drafter."""
        ...

    def attribute(self, runs: Sequence[CopiedRun], accepted: Sequence[int]) -> None:
        """Receive how many tokens of each row's run were accepted."""
        ...


class Trust:
    """How many of the copied tokens that were expected to be accepted are, or would have been:
    rounds are chosen by their expectation, so that overestimated ones are chosen too often."""

    def __init__(self) -> None:
        self._expected = PRIOR_TOKENS
        self._accepted = PRIOR_TRUST * PRIOR_TOKENS

    @property
    def value(self) -> float:
        return self._accepted / self._expected

    def count(self, expected: float, accepted: float) -> None:
        """Record tokens of a round; one in which none were expected tells nothing."""
        if not expected:
            return
        self._expected = FORGETTING * self._expected + expected
        self._accepted = FORGETTING * self._accepted + accepted


SHARE = 0.02
"""Part of an answer's time for which copies may be looked for in vain."""
FREE_ROUNDS = 4
"""Rounds at the beginning in which they are looked for anyway."""


class LookAllowance:
    """Whether a round looks for copies. This takes under a millisecond a row, nothing beside a
    forward of a large model, but a sixth of a round of a small model with 48 rows. So it may take
    `SHARE` of the time, and as much as copied tokens save, of which at most a round is kept."""

    def __init__(self) -> None:
        self._rounds = 0
        self._began = 0.0
        self._left = 0.0  # seconds, negative after looks in vain

    def next_round(self) -> None:
        """Begin a round."""
        now = time.perf_counter()
        if self._rounds:
            seconds = now - self._began
            self._left = min(self._left + SHARE * seconds, seconds)
        self._rounds += 1
        self._began = now

    @property
    def is_left(self) -> bool:
        return self._left >= 0 or self._rounds <= FREE_ROUNDS

    def save(self, seconds: float) -> None:
        """Record what copied tokens are expected to save."""
        self._left += seconds

    @contextmanager
    def looking(self) -> Iterator[None]:
        """The time within is spent on looking."""
        began = time.perf_counter()
        yield
        self._left -= time.perf_counter() - began


class MixedDrafter:
    """In each round the drafter proposes from which more tokens per second are expected: by the
    chances of its draft tokens, the costs of forwards, and the tokens that the model has missed.
    Where the model proposes, copied tokens follow its first choices if that pays.

    Args:
        model: drafts with a model, with trees that it chooses by measured costs.
        copying: copies from texts.
    """

    def __init__(self, model: ModelDrafter, copying: CopyingDrafter) -> None:
        self.model = model
        self.copying = copying
        self.max_nodes = max(model.max_nodes, copying.max_nodes)
        self.readings = model.readings | copying.readings
        self.needs_target_scores = model.needs_target_scores or copying.needs_target_scores
        self._looks = True
        self._is_copied = False
        # nodes of the model's tree, and the copied tokens of each row that follow it, if any do
        self._continued_at: tuple[int, Sequence[CopiedRun]] | None = None
        self._trust = Trust()
        self._allowance = LookAllowance()

    @property
    def forwards(self) -> int:
        return self.model.forwards + self.copying.forwards

    @property
    def cache_bytes(self) -> int:
        return self.model.cache_bytes + self.copying.cache_bytes

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        return self.model.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        self.model.begin(batch, encoded, context)
        self.copying.begin(batch, None, context)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        self._continued_at = None
        self._is_copied = False
        self._allowance.next_round()
        self._looks = self._allowance.is_left
        if not self._looks:
            return self.model.propose(batch, budget)
        with self._allowance.looking():
            copied = self.copying.proposal(batch, budget)
        self._is_copied = self._copying_is_faster(copied.expected, batch, budget)
        if not self._is_copied:
            tree = self.model.propose(batch, budget)
            if not tree.num_nodes:
                return tree
            with self._allowance.looking():
                return self._with_copies(tree, batch, budget)
        self.model.pause()
        return copied.tree

    def _with_copies(self, tree: DraftTree, batch: Batch, budget: int) -> DraftTree:
        """The model's tree with copied tokens after its first choices, if they pay."""
        topology = tree.topologies[0]
        path = first_choices(topology)
        most = min(budget - topology.depth, self.max_nodes - len(topology))
        if len(path) < topology.depth or most <= 0:  # nodes are in the order of their levels
            return tree
        drafted = tree.tokens[:, path].tolist()
        runs = self.copying.runs_after(batch, drafted, most)
        trust = min(self._trust.value, 1.0)
        chances = [
            [trust * chance for chance in run.chances]
            for run, history in zip(runs, batch.histories, strict=True)
            if not history.finished
        ]
        if not any(chances):
            return tree
        count, saved = self.model.further(chances)
        if not count:
            return tree
        self._allowance.save(saved)
        self._continued_at = len(topology), runs
        return continued(tree, [run.tokens[:count] for run in runs])

    def _copying_is_faster(self, expected: Expectation | None, batch: Batch, budget: int) -> bool:
        if expected is None:
            return False
        by_model = self.model.expected(batch, budget)
        advantage = expected.speed(self._trust.value) / by_model.speed() - 1
        self._allowance.save(max(advantage, 0) * expected.seconds)
        return advantage > 0

    def update(self, verdict: Verdict, batch: Batch) -> None:
        if self._is_copied:
            self.copying.record(batch)
            self.model.follow(verdict, batch)
        else:
            self.model.update(verdict, batch)
            self._attribute(verdict)
        if self._looks:
            with self._allowance.looking():
                self._trust.count(*self.copying.read(batch))

    def _attribute(self, verdict: Verdict) -> None:
        if self._continued_at is None:
            return
        num_drafted, runs = self._continued_at
        accepted = [sum(node >= num_drafted for node in path) for path in verdict.paths]
        self.copying.attribute(runs, accepted)

    def remove(self, row: int) -> None:
        self.model.remove(row)
        self.copying.remove(row)


def first_choices(topology: Topology) -> list[int]:
    """The path that follows the most preferred child of each node."""
    path: list[int] = []
    node = ROOT
    while node in topology.children:
        node = topology.children[node][0]
        path.append(node)
    return path


def continued(tree: DraftTree, further: Sequence[Sequence[int]]) -> DraftTree:
    """A tree, the same in every row, with a chain of further tokens in each row after the deepest
    of its first choices."""
    topology = tree.topologies[0]
    leaf = first_choices(topology)[-1]
    topologies = []
    filled = tree.tokens.new_zeros(len(further), max(map(len, further)))
    for row, tokens in enumerate(further):
        end = len(topology) + len(tokens)
        parents = (leaf, *range(len(topology), end - 1)) if tokens else ()
        topologies.append(Topology((*topology.parents, *parents)))
        filled[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return DraftTree(tuple(topologies), torch.cat([tree.tokens, filled], 1))
