"""Rows: steps and seeds of the noise, and histories at the nodes of a tree."""

from __future__ import annotations

import torch
from batches import batch_of, sequences

from draftlens.core.tree import EMPTY, ROOT, from_paths
from draftlens.ops.sampling import row_seeds
from draftlens.sequences import Batch

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
