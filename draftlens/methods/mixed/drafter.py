"""Two drafters for the same rows, which take turns; copied tokens may follow the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from draftlens.core.sequence import Batch
from draftlens.core.tree import ROOT, DraftTree, Topology, Verdict
from draftlens.decoding.plan import Drafter, TargetContext
from draftlens.drafting.adaptive.costs import CopiedRun, Expectation
from draftlens.drafting.model_drafter import ModelDrafter

PRIOR_TOKENS = 16.0
"""Expected tokens that the prior of `Trust` counts as."""
PRIOR_TRUST = 0.8
FORGETTING = 0.9
"""Weight of a round relative to the next one."""


class CopyingDrafter(Drafter, Protocol):
    """A drafter whose proposals cost next to nothing and have measured chances, such as
    `LookupDrafter`."""

    expected: Expectation | None
    """The expected result of the last proposal; None if it is empty."""

    comparison: tuple[float, int]
    """Tokens of the last round, in all rows, that this proposal was expected to have, and that it
    had, whichever drafter proposed."""

    def follow(self, batch: Batch) -> None:
        """Receive the tokens of a round in which another drafter proposed."""
        ...

    def following(
        self, batch: Batch, drafted: Sequence[Sequence[int]], length: int
    ) -> Sequence[CopiedRun]:
        """What may be copied in each row after draft tokens of another drafter."""
        ...

    def attribute_further(self, accepted: Sequence[int]) -> None:
        """Count how many tokens of the latest `following` were accepted in each row."""
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
        self._is_copied = False
        # nodes of the model's tree where copied tokens follow it; else None
        self._num_drafted: int | None = None
        self._trust = Trust()

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
        copied = self.copying.propose(batch, budget)
        self._num_drafted = None
        self._is_copied = self._copying_is_faster(batch, budget)
        if not self._is_copied:
            tree = self.model.propose(batch, budget)
            return self._continued(tree, batch, budget) if tree.num_nodes else tree
        self.model.pause()
        return copied

    def _continued(self, tree: DraftTree, batch: Batch, budget: int) -> DraftTree:
        """The model's tree with copied tokens after its first choices, if they pay."""
        topology = tree.topologies[0]
        path = first_choices(topology)
        most = min(budget - topology.depth, self.max_nodes - len(topology))
        if len(path) < topology.depth or most <= 0:  # nodes are in the order of their levels
            return tree
        drafted = tree.tokens[:, path].tolist()
        runs = self.copying.following(batch, drafted, most)
        trust = min(self._trust.value, 1.0)
        chances = [
            [trust * chance for chance in run.chances]
            for run, history in zip(runs, batch.histories, strict=True)
            if not history.finished
        ]
        count = self.model.further(chances) if any(chances) else 0
        if not count:
            return tree
        self._num_drafted = len(topology)
        return continued(tree, [run.tokens[:count] for run in runs])

    def _copying_is_faster(self, batch: Batch, budget: int) -> bool:
        expected = self.copying.expected
        if expected is None:
            return False
        by_model = self.model.expected(batch, budget)
        return expected.speed(self._trust.value) > by_model.speed()

    def update(self, verdict: Verdict, batch: Batch) -> None:
        if self._is_copied:
            self.copying.update(verdict, batch)
            self.model.follow(verdict, batch)
        else:
            self.model.update(verdict, batch)
            self._attribute(verdict)
            self.copying.follow(batch)
        self._trust.count(*self.copying.comparison)

    def _attribute(self, verdict: Verdict) -> None:
        if self._num_drafted is None:
            return
        accepted = [sum(node >= self._num_drafted for node in path) for path in verdict.paths]
        self.copying.attribute_further(accepted)

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
