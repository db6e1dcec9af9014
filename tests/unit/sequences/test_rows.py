"""Rows: keys of the noise and histories at the nodes of a tree."""

from __future__ import annotations

import torch

from draftlens.core.tree import EMPTY, ROOT, from_paths
from draftlens.draft import Rows
from draftlens.ops.sampling import SamplingRule

TREE = from_paths([[0], [1], [0, 0], [1, 0], [1, 1]])


def said(*answers: list[int]) -> Rows:
    rows = Rows(torch.tensor([[7, 8]] * len(answers)), SamplingRule())
    rows.tokens = list(answers)
    return rows


def test_new_rows_are_empty() -> None:
    rows = Rows(torch.zeros(3, 2, dtype=torch.long), SamplingRule())
    assert (rows.tokens, rows.from_draft, rows.finished) == (
        [[], [], []],
        [[], [], []],
        [False] * 3,
    )
    assert rows.tokens[0] is not rows.tokens[1]
    assert len(rows) == 3


def test_steps_and_numbers() -> None:
    rows, cpu = said([1, 2], [], [3]), torch.device("cpu")
    assert rows.steps(cpu).tolist() == [[2], [0], [1]]
    assert rows.numbers(cpu).tolist() == [0, 1, 2]


def test_history() -> None:
    assert said([1, 2], [3]).history(1).tolist() == [7, 8, 3]
    assert said([1, 2], [3]).history(0, [5, 6]).tolist() == [7, 8, 1, 2, 5, 6]


def test_histories_hold_each_nodes_ancestors() -> None:
    rows, guesses = said([1], [2, 3]), torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]])
    nodes = (4, ROOT, 1, 2)
    found = {}
    for row, indices, ids in rows.histories(TREE, guesses, nodes):
        found |= {
            (row, nodes[index]): history
            for index, history in zip(indices, ids.tolist(), strict=True)
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
    [(row, indices, ids)] = said([1]).histories(EMPTY, torch.empty(1, 0, dtype=torch.long), (ROOT,))
    assert (row, indices, ids.tolist()) == (0, [0], [[7, 8, 1]])
