"""Trees as shapes, against slow twins."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.errors import ConfigError
from draftlens.core.tree import EAGLE_PATHS, EMPTY, ROOT, Topology, chain, from_paths

FORKED = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]])


def random_trees(count: int) -> list[Topology]:
    rng = random.Random(5)
    made = []
    for _ in range(count):
        parents: list[int] = []
        for node in range(rng.randint(1, 12)):
            parents.append(rng.randint(parents[-1] if parents else ROOT, node - 1))
        made.append(Topology(tuple(parents)))
    return made


TREES = [EMPTY, chain(1), chain(4), FORKED, from_paths(EAGLE_PATHS), *random_trees(20)]


def line(topology: Topology, node: int) -> list[int]:
    """A node's ancestors, itself first, the root excluded."""
    return [] if node == ROOT else [node, *line(topology, topology.parents[node])]


def test_chain() -> None:
    assert chain(0) == EMPTY
    assert chain(3).parents == (ROOT, 0, 1)
    assert chain(3).depths == (1, 2, 3)
    assert chain(3).inner == (ROOT, 0, 1)


def test_from_paths_orders_by_level_and_rank() -> None:
    shuffled = [[0, 1, 0], [1, 0], [0, 1], [1], [0, 0], [0]]
    assert from_paths(shuffled) == FORKED == Topology((ROOT, ROOT, 0, 0, 1, 3))
    assert FORKED.children == {ROOT: (0, 1), 0: (2, 3), 1: (4,), 3: (5,)}
    assert FORKED.inner == (ROOT, 0, 1, 3)
    assert FORKED.depth == 3
    assert from_paths([]) == EMPTY


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[0], []], "a tree is a list of non-empty paths of ranks >= 0"),
        ([[0], [-1]], "a tree is a list of non-empty paths of ranks >= 0"),
        ([[0], [0.5]], "a tree is a list of non-empty paths of ranks >= 0"),
        ([[True]], "a tree is a list of non-empty paths of ranks >= 0"),
        ([[0], ["a"]], "a tree is a list of non-empty paths of ranks >= 0"),
        ([[0], [None]], "a tree is a list of non-empty paths of ranks >= 0"),
        ([0, 1], "a tree is a list of non-empty paths of ranks >= 0"),
        (7, "a tree is a list of non-empty paths of ranks >= 0"),
        ([[0], [0]], r"the tree names the path \[0\] twice"),
        ([[0, 0]], r"path \[0, 0\] needs \[0\], which is missing"),
        ([[0], [0, 1]], r"path \[0, 1\] needs \[0, 0\], which is missing"),
        ([[1]], r"path \[1\] needs \[0\], which is missing"),
    ],
)
def test_from_paths_refuses(paths: list[list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_paths(paths)


def test_eagle_counts_by_depth() -> None:
    assert Counter(from_paths(EAGLE_PATHS).depths) == {1: 4, 2: 8, 3: 8, 4: 3, 5: 2}


@pytest.mark.parametrize("topology", TREES)
def test_ancestors_and_depths_equal_the_slow_twin(topology: Topology) -> None:
    nodes = range(ROOT, len(topology))
    expected = [[other in (ROOT, *line(topology, node)) for other in nodes] for node in nodes]
    assert torch.equal(trees.ancestors(topology), torch.tensor(expected))
    assert trees.depths(topology).tolist() == [len(line(topology, node)) for node in nodes]


@pytest.mark.parametrize("topology", TREES)
def test_cut_keeps_what_is_not_deeper(topology: Topology) -> None:
    for depth in range(-1, topology.depth + 2):
        kept = [
            parent
            for node, parent in enumerate(topology.parents)
            if len(line(topology, node)) <= depth
        ]
        assert trees.cut(topology, depth).parents == tuple(kept)


def slow_mask(prefix: list[int], window: Tensor) -> Tensor:
    tokens, width = window.shape
    mask = torch.zeros(len(prefix), 1, tokens, max(prefix) + width, dtype=torch.bool)
    for row, length in enumerate(prefix):
        for token in range(tokens):
            for slot in range(max(prefix) + width):
                inside = length <= slot < length + width
                mask[row, 0, token, slot] = slot < length or (
                    inside and bool(window[token, slot - length])
                )
    return mask


@pytest.mark.parametrize("prefix", [[4], [4, 4, 4], [0, 0], [3, 0, 7, 7]])
@pytest.mark.parametrize("topology", [chain(2), FORKED])
def test_attention_mask_equals_the_slow_twin(prefix: list[int], topology: Topology) -> None:
    window = trees.ancestors(topology)
    for part in (
        window,
        window[-2:],
        window[:1],
    ):  # a level of a draft's tree sees more slots than it has tokens
        assert torch.equal(trees.attention_mask(prefix, part), slow_mask(prefix, part))


def test_no_mask_where_one_token_sees_everything() -> None:
    single = trees.ancestors(EMPTY)
    assert trees.attention_mask([5, 5], single) is None
    assert torch.equal(trees.attention_mask([5, 4], single), slow_mask([5, 4], single))


def random_batch(seed: int) -> list[Topology]:
    rng = random.Random(seed)
    return [rng.choice(TREES) for _ in range(rng.randint(1, 5))]


CPU = torch.device("cpu")


@pytest.mark.parametrize("topology", TREES)
def test_equal_trees_of_a_batch_share_their_tables(topology: Topology) -> None:
    same = [topology, Topology(topology.parents), topology]
    assert torch.equal(trees.batch_ancestors(same, CPU), trees.ancestors(topology))
    assert torch.equal(trees.batch_depths(same, CPU), trees.depths(topology))


@pytest.mark.parametrize("seed", range(20))
def test_trees_that_differ_by_row_equal_the_slow_twin(seed: int) -> None:
    """Fillers attend to themselves and nothing attends to them; their depth is 0."""
    topologies = [EMPTY, FORKED, *random_batch(seed)]
    width = max(map(len, topologies)) + 1
    visible = trees.batch_ancestors(topologies, CPU)
    depths = trees.batch_depths(topologies, CPU)
    assert visible.shape == (len(topologies), width, width)
    assert visible.dtype == torch.bool
    assert depths.shape == (len(topologies), width)
    assert depths.dtype == torch.int64
    for row, topology in enumerate(topologies):
        for token in range(width):
            node = token - 1
            real = token <= len(topology)
            path = line(topology, node) if real else []
            seen = {other + 1 for other in (ROOT, *path)} if real else {token}
            assert set(visible[row, token].nonzero()[:, 0].tolist()) == seen
            assert int(depths[row, token]) == len(path)


def test_cached_tables_are_not_changed_by_a_batch() -> None:
    before = trees.ancestors(FORKED, CPU).clone()
    trees.batch_ancestors([EMPTY, FORKED], CPU)[1].fill_(False)
    assert torch.equal(trees.ancestors(FORKED, CPU), before)


@pytest.mark.parametrize("prefix", [[4, 4, 4], [0, 0, 0], [3, 0, 7]])
def test_the_attention_mask_of_rows_that_differ_equals_the_slow_twin(prefix: list[int]) -> None:
    window = trees.batch_ancestors([chain(2), FORKED, EMPTY], CPU)
    for part in (window, window[:, -2:], window[:, :1]):
        mask = trees.attention_mask(prefix, part)
        assert mask is not None
        assert mask.shape == (3, 1, part.shape[1], max(prefix) + part.shape[2])
        for row, length in enumerate(prefix):
            end = length + part.shape[2]
            assert torch.equal(mask[row : row + 1, ..., :end], slow_mask([length], part[row]))
            assert not mask[row, ..., end:].any()
