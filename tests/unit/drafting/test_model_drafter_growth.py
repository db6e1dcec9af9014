"""A tree is grown as if every node were asked about alone, with its own history."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from torch import Tensor
from transformers.generation import logits_process as hf

from draftlens.core.prefill_readings import NO_FEATURES
from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Batch
from draftlens.core.tree import EAGLE_PATHS, ROOT, DraftTree, Topology, chain, from_paths, path_to
from draftlens.drafting.draft_rows import Level
from draftlens.drafting.model_drafter import TreeDrafter

VOCAB = 12
CPU = torch.device("cpu")
PROMPT = torch.tensor([[7, 8, 3], [0, 2, 9]])
ANSWERS = [[1, 2, 5], [4]]
TREES = {
    "chain": chain(4),
    "eagle": from_paths(EAGLE_PATHS),
    "odd": from_paths([[0], [1], [2], [1, 0], [1, 1], [2, 0], [1, 1, 0], [1, 1, 0, 0]]),
    "wide": from_paths([[0], [1], [2], [0, 0], [1, 0], [1, 1], [2, 0], [0, 0, 0], [2, 0, 0]]),
}
PROCESSORS = {
    "none": (),
    "penalty": (hf.RepetitionPenaltyLogitsProcessor(3.0),),
    "no repeats": (hf.NoRepeatNGramLogitsProcessor(1),),
}


class Table(TreeDrafter):
    """A drafter whose logits depend on the last token alone.

    Args:
        logits: float ``[V, V]``, by the last token.
        batch: the rows.
    """

    def __init__(self, logits: Tensor, batch: Batch) -> None:
        rows: Any = SimpleNamespace(run_on=lambda *_: None)
        super().__init__(rows, NO_FEATURES, TREES["chain"])
        self.logits = logits
        self.batch = batch

    def grown(self, topology: Topology) -> DraftTree:
        return self._grow(topology, self.batch, self.logits[self.batch.roots(CPU)])

    def _expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        return self.logits[tokens]


def slow_draft_token(
    logits: Tensor, row: int, path: list[int], rule: SamplingRule, rank: int
) -> int:
    """The draft token of a rank after a path of tokens, with nothing shared between nodes."""
    history = torch.tensor([[*PROMPT[row].tolist(), *ANSWERS[row], *path]])
    scores = logits[history[:, -1]]
    for processor in rule.processors:
        scores = processor(history, scores)
    return int(scores.topk(rank + 1).indices[0, rank])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("name", TREES)
def test_every_node_has_the_history_of_its_own_path(name: str, processors: str, seed: int) -> None:
    """Not that of a sibling, which would make the draft worse but no answer wrong."""
    topology: Topology = TREES[name]
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
    rule = SamplingRule(PROCESSORS[processors])
    batch = batch_of(sequences(PROMPT, ANSWERS, rule))
    tree = Table(logits, batch).grown(topology)
    tokens = tree.tokens.tolist()
    for row in range(len(ANSWERS)):
        for node, parent in enumerate(topology.parents):
            path = [] if parent == ROOT else [tokens[row][n] for n in path_to(topology, parent)]
            rank = topology.children[parent].index(node)
            assert tokens[row][node] == slow_draft_token(logits, row, path, rule, rank), (row, node)


def test_processors_matter() -> None:
    """Otherwise histories would not."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
    grown = []
    for processors in PROCESSORS.values():
        batch = batch_of(sequences(PROMPT, ANSWERS, SamplingRule(processors)))
        grown.append(Table(logits, batch).grown(TREES["wide"]).tokens.tolist())
    assert grown[0] != grown[1] != grown[2] != grown[0]
