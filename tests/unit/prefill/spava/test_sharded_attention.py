"""Attention to keys that several hosts hold: the same as to all keys in one place."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from in_threads import InThreads, by_all_ranks
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftlens.core import tree as trees
from draftlens.core.tree import ROOT, Topology
from draftlens.models.attention.scores import AttentionProbe
from draftlens.prefill.spava.sharded_attention import (
    AttentionOnRankZero,
    HeldRow,
    OnOtherRank,
    SpreadAttention,
)
from draftlens.prefill.spava.sharded_scores import Local, Readers, probe_by_ranks

HEADS, GROUPS, WIDTH = 4, 2, 8
TREE = Topology((ROOT, ROOT, 0, 1))
SIZE = len(TREE) + 1
LENGTHS = [11, 7]
"""Tokens of each row after which the tree stands."""

OWNERS = [torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 0]), torch.zeros(7, dtype=torch.long)]
"""The rank that holds each token; rank 0 has the whole second row."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def keys_of(row: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a row, tokens of the tree after the prompt: ``[H', n, D]`` each."""
    both = random(2, GROUPS, LENGTHS[row] + SIZE, WIDTH)
    return both[0], both[1]


def held(rank: int, row: int) -> tuple[Tensor, Tensor]:
    """Those that a rank has: its own of the prompt, and on rank 0 the tree."""
    keys, values = keys_of(row)
    places = (OWNERS[row] == rank).nonzero()[:, 0]
    if rank == 0:
        places = torch.cat([places, torch.arange(LENGTHS[row], LENGTHS[row] + SIZE)])
    return keys[:, places], values[:, places]


def decode(queries: Tensor, hosts: InThreads) -> Tensor:
    """One layer of one rank, ``[B, T, H, D]``."""
    pairs = [held(hosts.rank, row) for row in range(len(LENGTHS))]
    if hosts.rank:
        rows = [HeldRow((keys,), (values,)) for keys, values in pairs]
        attention = SpreadAttention(OnOtherRank([rows[0], None]), hosts)
        new = torch.zeros(len(rows), GROUPS, SIZE, WIDTH)
        return attention(None, queries, new, new, None)[0]
    lengths = [keys.shape[1] - SIZE for keys, _ in pairs]
    longest = max(lengths) + SIZE
    cached = torch.full((2, len(pairs), GROUPS, longest, WIDTH), torch.nan)
    for row, (keys, values) in enumerate(pairs):
        cached[0, row, :, : keys.shape[1]] = keys
        cached[1, row, :, : keys.shape[1]] = values
    mask = trees.attention_mask(lengths, trees.ancestors(TREE))
    attention = SpreadAttention(AttentionOnRankZero(lengths, mask), hosts)
    return attention(None, queries, cached[0], cached[1], mask)[0]


def test_a_tree_sees_each_key_once_and_itself_as_far_as_it_may() -> None:
    """On every rank, for rows of different lengths."""
    queries = random(len(LENGTHS), HEADS, SIZE, WIDTH)
    outputs = by_all_ranks(3, partial(decode, queries))
    for row, length in enumerate(LENGTHS):
        keys, values = keys_of(row)
        mask = trees.attention_mask([length], trees.ancestors(TREE))
        expected = scaled_dot_product_attention(
            queries[row : row + 1], keys[None], values[None], mask, enable_gqa=True
        )
        for output in outputs:
            assert (output[row] - expected[0].transpose(0, 1)).abs().max() < 2e-6


@pytest.mark.parametrize("part", [1 << 24, 7], ids=["at once", "in parts"])
def test_a_probe_measures_where_the_keys_are(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """The scores of the probe in one process, layer by layer; readers may be anywhere."""
    monkeypatch.setattr("draftlens.prefill.spava.sharded_scores.BLOCK", part)
    visual = torch.zeros(2, 11, dtype=torch.bool)
    visual[0, [1, 2, 5, 6]] = True
    visual[1, [0, 3]] = True
    queries = random(2, 2, HEADS, 11, WIDTH)
    keys = random(2, 2, GROUPS, 11, WIDTH)
    scalings = [0.3, 0.5]
    twin = AttentionProbe(visual, LENGTHS)
    for layer in range(2):
        twin.add(queries[layer], keys[layer], scalings[layer])
    readers = [Readers(row, OWNERS[number][row]) for number, row in enumerate(twin.readers)]

    def measure(hosts: InThreads) -> list[list[Tensor]]:
        layers = []
        for layer in range(2):
            rows = []
            for row in range(2):
                places = (OWNERS[row] == hosts.rank).nonzero()[:, 0]
                own = readers[row].places[readers[row].owners == hosts.rank]
                asked = queries[layer, row][:, own]
                rows.append(Local(asked, keys[layer, row][:, places], places))
            layers.append(rows)
        return probe_by_ranks(layers, scalings, readers, hosts)

    measured = by_all_ranks(3, measure)
    for layer in range(2):
        scores = torch.zeros(2, 11)
        for rank, of_rank in enumerate(measured):
            for row in range(2):
                scores[row, (OWNERS[row] == rank).nonzero()[:, 0]] = of_rank[layer][row]
        assert (scores * visual - twin.by_layer[layer]).abs().max() < 1e-5


def test_nobody_reads_where_there_is_no_text_behind_pixels() -> None:
    """And nothing is scored."""
    nobody = Readers(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))

    def measure(hosts: InThreads) -> list[list[Tensor]]:
        local = Local(torch.empty(HEADS, 0, WIDTH), random(GROUPS, 5, WIDTH), torch.arange(5))
        return probe_by_ranks([[local]], [1.0], [nobody], hosts)

    for measured in by_all_ranks(2, measure):
        assert measured[0][0].tolist() == [0] * 5
