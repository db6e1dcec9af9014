"""Rows: steps and seeds of the noise, and histories at the nodes of a tree."""

from __future__ import annotations

import pytest
import torch
from batches import batch_of, sequences
from transformers.generation import logits_process as hf

from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.sequence import Batch
from draftlens.core.tree import EMPTY, ROOT, Topology, chain, from_paths

TREE = from_paths([[0], [1], [0, 0], [1, 0], [1, 1]])


def said(*answers: list[int]) -> Batch:
    return batch_of(sequences(torch.tensor([[7, 8]] * len(answers)), answers))


def test_new_rows_are_empty() -> None:
    rows = sequences(torch.zeros(3, 2, dtype=torch.long), [[], [], []])
    assert (
        [row.tokens for row in rows],
        [row.from_draft for row in rows],
        [row.finished for row in rows],
    ) == (
        [[], [], []],
        [[], [], []],
        [False] * 3,
    )
    assert rows[0].tokens is not rows[1].tokens
    assert len(batch_of(rows)) == 3


def test_steps_and_seeds() -> None:
    rows, cpu = said([1, 2], [], [3]), torch.device("cpu")
    assert rows.steps(cpu).tolist() == [[2], [0], [1]]
    assert rows.seeds(cpu).tolist() == row_seeds(0, 3)


def test_history() -> None:
    assert said([1, 2], [3]).histories[1].ids().tolist() == [7, 8, 3]
    assert said([1, 2], [3]).histories[0].ids([5, 6]).tolist() == [7, 8, 1, 2, 5, 6]


def test_histories_hold_each_nodes_ancestors() -> None:
    rows, guesses = said([1], [2, 3]), torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]])
    nodes = (4, ROOT, 1, 2)
    found = {}
    for group in rows.node_histories(range(2), [TREE] * 2, guesses, [nodes] * 2):
        found |= {
            (group.index, nodes[index]): history
            for index, history in zip(group.nodes, group.ids.tolist(), strict=True)
        }
    assert found == {
        (0, ROOT): [7, 8, 1],
        (0, 1): [7, 8, 1, 11],
        (0, 2): [7, 8, 1, 10, 12],
        (0, 4): [7, 8, 1, 11, 14],
        (1, ROOT): [7, 8, 2, 3],
        (1, 1): [7, 8, 2, 3, 21],
        (1, 2): [7, 8, 2, 3, 20, 22],
        (1, 4): [7, 8, 2, 3, 21, 24],
    }


def test_histories_of_the_empty_tree() -> None:
    no_guesses = torch.empty(1, 0, dtype=torch.long)
    [group] = said([1]).node_histories([0], [EMPTY], no_guesses, [(ROOT,)])
    assert (group.index, group.nodes, group.ids.tolist()) == (0, [0], [[7, 8, 1]])


def test_a_history_does_not_change_when_its_sequence_grows() -> None:
    [row] = sequences(torch.tensor([[7, 8]]), [[1, 2]])
    before = row.history
    row.tokens.append(3)
    row.finished = True
    assert (before.tokens, before.last_token, before.finished) == ((1, 2), 2, False)
    assert before.ids([9]).tolist() == [7, 8, 1, 2, 9]
    assert row.history.tokens == (1, 2, 3)
    longer = before.extended([5, 6])
    assert (longer.tokens, longer.last_token) == ((1, 2, 5, 6), 6)
    assert before.tokens == (1, 2)


RULES = {
    "greedy": SamplingRule(),
    "warm": SamplingRule((hf.TemperatureLogitsWarper(0.5), hf.TopKLogitsWarper(4)), do_sample=True),
    "no repeats": SamplingRule((hf.NoRepeatNGramLogitsProcessor(2),)),
    "rejection": SamplingRule((hf.TemperatureLogitsWarper(2.0),), True, "rejection"),
    "drawn": SamplingRule(do_sample=True),
}


def mixed_rows(*names: str) -> tuple[Batch, list[Batch]]:
    """A batch whose rows belong to different calls, and each of its rows as a batch."""
    rows = []
    for number, name in enumerate(names):
        answer = [(number + step) % 3 for step in range(number + 1)]
        [row] = sequences(torch.tensor([[7, 8]]), [answer], RULES[name], seed=number)
        rows.append(row)
    return batch_of(rows), [batch_of([row]) for row in rows]


@pytest.mark.parametrize(
    "names",
    [
        ("greedy", "greedy"),
        ("greedy", "warm", "greedy"),
        ("no repeats", "rejection", "warm", "drawn"),
        ("drawn", "greedy", "no repeats"),
    ],
)
def test_rows_of_different_calls_are_scored_as_each_by_itself(names: tuple[str, ...]) -> None:
    """Trees that differ by row, processors that differ by row, and noise of each row's own."""
    torch.manual_seed(0)
    batch, alone = mixed_rows(*names)
    topologies: list[Topology] = [TREE, EMPTY, chain(2), TREE][: len(names)]
    logits, guesses = torch.randn(len(names), 6, 9), torch.randint(0, 9, (len(names), 5))
    nodes = [(ROOT, *range(len(topology))) for topology in topologies]
    steps = batch.steps(logits.device) + torch.arange(6)
    before = logits.clone()
    scores = batch.process(logits, topologies, guesses, nodes)
    ranking = batch.ranking(scores, steps)
    assert torch.equal(logits, before)
    for row, one in enumerate(alone):
        count, part = len(nodes[row]), slice(row, row + 1)
        expected = one.process(logits[part, :count], topologies[part], guesses[part], nodes[part])
        assert torch.equal(scores[part, :count], expected.to(scores.dtype))
        expected_ranking = one.ranking(expected, steps[part, :count])
        assert torch.equal(ranking[part, :count].double(), expected_ranking.double())
    assert batch.rejects is ("rejection" in names)
    assert sorted(row for rows in batch.rules.values() for row in rows) == [*range(len(names))]
