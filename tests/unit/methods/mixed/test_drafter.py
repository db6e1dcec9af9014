"""Copied tokens after the tree of a model."""

from __future__ import annotations

import torch

from draftlens.core.tree import EMPTY, DraftTree, chain, from_paths
from draftlens.methods.mixed.drafter import continued, first_choices

FORKED = from_paths([[0], [1], [0, 0], [1, 0], [0, 0, 0], [0, 0, 1]])


def test_the_path_of_first_choices() -> None:
    assert first_choices(FORKED) == [0, 2, 4]
    assert first_choices(chain(2)) == [0, 1]
    assert first_choices(EMPTY) == []


def test_each_row_has_its_own_further_tokens() -> None:
    tokens = torch.arange(18).view(3, 6)
    tree = continued(DraftTree.uniform(FORKED, tokens), [[7, 8], [], [9]])
    assert [topology.parents[6:] for topology in tree.topologies] == [(4, 6), (), (4,)]
    assert all(topology.parents[:6] == FORKED.parents for topology in tree.topologies)
    assert tree.tokens[:, :6].equal(tokens)
    assert tree.tokens[:, 6:].tolist() == [[7, 8], [0, 0], [9, 0]]
    assert first_choices(tree.topologies[0]) == [0, 2, 4, 6, 7]
    for topology in tree.topologies:  # in the order of their levels
        assert list(topology.depths) == sorted(topology.depths)
