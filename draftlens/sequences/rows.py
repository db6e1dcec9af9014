"""What has been said so far, row by row: the state that the loop writes and drafters read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftlens.core.tree import ROOT, Topology
from draftlens.ops.sampling import SamplingRule


@dataclass
class Rows:
    """The answers of one batch while they grow.

    Args:
        prompt_ids: int64 ``[B, L]``, left-padded as stock `generate` sees them: processors and
            stopping criteria read them as history.
        rule: how tokens are chosen, by draft and target alike.
        tokens: per row the ids emitted so far.
        from_draft: per row and token, whether the draft supplied it.
        finished: per row, whether its answer has ended.
    """

    prompt_ids: Tensor
    rule: SamplingRule
    tokens: list[list[int]] = field(default_factory=list)
    from_draft: list[list[bool]] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = self.prompt_ids.shape[0]
        self.tokens = [[] for _ in range(rows)]
        self.from_draft = [[] for _ in range(rows)]
        self.finished = [False] * rows

    def __len__(self) -> int:
        return len(self.tokens)

    def steps(self, device: torch.device) -> Tensor:
        """Index in its answer of the token that each row chooses next, int64 ``[B, 1]``."""
        return torch.tensor([[len(tokens)] for tokens in self.tokens], device=device)

    def numbers(self, device: torch.device) -> Tensor:
        """Row numbers, int64 ``[B]``: part of the key of the sampling noise."""
        return torch.arange(len(self.tokens), device=device)

    def history(self, row: int, more: Sequence[int] = ()) -> Tensor:
        """Prompt, answer and `more` of one row, int64 ``[length]``."""
        return torch.cat(
            [self.prompt_ids[row], self.prompt_ids.new_tensor([*self.tokens[row], *more])]
        )

    def histories(
        self, topology: Topology, guesses: Tensor, nodes: Sequence[int]
    ) -> Iterator[tuple[int, list[int], Tensor]]:
        """Histories at some nodes of a tree, grouped by length, for processors that read them.

        Args:
            topology: the tree.
            guesses: its tokens, int64 ``[B, N]`` (only the ancestors of `nodes` need to be filled
                in).
            nodes: node indices, `ROOT` allowed.

        Yields:
            (row, indices into `nodes`, ids int64 ``[len(indices), length]``).
        """
        groups: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            groups.setdefault(0 if node == ROOT else topology.depths[node], []).append(index)
        table = guesses.tolist()
        for row in range(len(self)):
            for indices in groups.values():
                paths = [_path(topology, nodes[index]) for index in indices]
                ids = [self.history(row, [table[row][node] for node in path]) for path in paths]
                yield row, indices, torch.stack(ids)


def _path(topology: Topology, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = topology.parents[node]
    return path[::-1]
