"""The sequences of a batch at one moment, as read by drafters and verification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from draftlens.core.history import History
from draftlens.core.sampling import NodeHistories, SamplingRule
from draftlens.core.tree import ROOT, Topology, path_to


@dataclass(frozen=True, eq=False)
class Batch:
    histories: tuple[History, ...]

    def __len__(self) -> int:
        return len(self.histories)

    @cached_property
    def rules(self) -> dict[SamplingRule, list[int]]:
        rows: dict[SamplingRule, list[int]] = {}
        for row, history in enumerate(self.histories):
            rows.setdefault(history.sampling, []).append(row)
        return rows

    @cached_property
    def rejects(self) -> bool:
        """Whether any row uses rejection sampling, which needs the draft's probabilities."""
        return any(rule.rejects for rule in self.rules)

    @cached_property
    def is_greedy(self) -> bool:
        """Whether every row takes the argmax of the unprocessed logits."""
        return not any(rule.do_sample or rule.processors for rule in self.rules)

    def roots(self, device: torch.device) -> Tensor:
        """Last emitted tokens, the roots of the next draft trees, int64 ``[B, 1]``."""
        return self._roots.to(device)

    def steps(self, device: torch.device) -> Tensor:
        """Index in its answer of the token that each row chooses next, int64 ``[B, 1]``."""
        return self._steps.to(device)

    @cached_property
    def _roots(self) -> Tensor:
        return torch.tensor([[h.last_token] for h in self.histories])

    @cached_property
    def _steps(self) -> Tensor:
        return torch.tensor([[h.length] for h in self.histories])

    def seeds(self, device: torch.device) -> Tensor:
        """Seeds of the rows' noise, int64 ``[B]``."""
        return torch.tensor([h.seed for h in self.histories], device=device)

    def process(
        self,
        logits: Tensor,
        topologies: Sequence[Topology],
        tokens: Tensor,
        nodes: Sequence[Sequence[int]],
    ) -> Tensor:
        """Scores after the logits processors, ``[B, M, V]`` like `logits`, at M nodes of each row's
        tree (`nodes`, `ROOT` allowed; shorter lists are followed by fillers). Of the draft tokens,
        int64 ``[B, N]``, only ancestors of `nodes` are read."""
        if len(self.rules) == 1:
            rule = next(iter(self.rules))
            all_rows = range(len(self))
            return rule.process(
                logits, lambda: self.node_histories(all_rows, topologies, tokens, nodes)
            )
        dtype = logits.dtype if all(not rule.processors for rule in self.rules) else torch.float32
        scores = logits.to(dtype, copy=True)
        for rule, rows in self.rules.items():

            def histories(rows: list[int] = rows) -> Iterator[NodeHistories]:
                return self.node_histories(rows, topologies, tokens, nodes)

            scores[rows] = rule.process(logits[rows], histories).to(dtype)
        return scores

    def ranking(self, scores: Tensor, steps: Tensor) -> Tensor:
        """`SamplingRule.ranking` of processed scores ``[B, M, V]``; `steps` is the index in its
        answer of the token chosen at each node, int64 ``[B, M]``."""
        if not any(rule.do_sample for rule in self.rules):
            return scores
        seeds = self.seeds(steps.device)
        if len(self.rules) == 1:
            return next(iter(self.rules)).ranking(scores, seeds, steps)
        ranking = scores.double()
        for rule, rows in self.rules.items():
            ranking[rows] = rule.ranking(scores[rows], seeds[rows], steps[rows]).double()
        return ranking

    def node_histories(
        self,
        rows: Sequence[int],
        topologies: Sequence[Topology],
        tokens: Tensor,
        nodes: Sequence[Sequence[int]],
    ) -> Iterator[NodeHistories]:
        """Histories at nodes of some rows' trees, grouped by length; arguments as for `process`.
        `NodeHistories.index` counts within `rows`."""
        table = tokens.tolist()
        for index, row in enumerate(rows):
            history = self.histories[row]
            topology = topologies[row]
            by_depth: dict[int, list[int]] = {}
            for place, node in enumerate(nodes[row]):
                depth = 0 if node == ROOT else topology.depths[node]
                by_depth.setdefault(depth, []).append(place)
            for places in by_depth.values():
                ids = [
                    history.ids([table[row][n] for n in path_to(topology, nodes[row][place])])
                    for place in places
                ]
                yield NodeHistories(index, places, torch.stack(ids), history.row, history.num_rows)
