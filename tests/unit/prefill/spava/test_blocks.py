"""Attention in blocks, compared with attention under a mask that is written down key by key."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from draftlens_lab.plugins.spava_ablation import random_keys, uniform_keys
from torch import Tensor

from draftlens.prefill.spava.blocks import Blocks, Share, dealt, divide
from draftlens.prefill.spava.flops import Work
from draftlens.prefill.spava.one_process_attention import attend_in_blocks
from draftlens.prefill.spava.passing_keys import Choose, keys_by_query, sampled_keys

SCALING = 0.4
WITHOUT_NEIGHBOURS: Choose = partial(keys_by_query, neighbours=1)
RULES = {
    "query": keys_by_query,
    "sampled": sampled_keys,
    "no neighbours": WITHOUT_NEIGHBOURS,
    "random": random_keys,
    "uniform": uniform_keys,
}


def states(length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of four heads, keys and values of two."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(n, length, 8, generator=generator) for n in (4, 2, 2))
    return query, key, value


def visible(query: Tensor, key: Tensor, blocks: Blocks, choose: Choose, layer: int) -> Tensor:
    """Which keys each head and query sees by eq. 4 and 5 of SPAVA, bool ``[H, L, L]``."""
    heads = query.shape[0]
    seen = torch.zeros(heads, blocks.length, blocks.length, dtype=torch.bool)
    causal = torch.ones(blocks.length, blocks.length).tril().bool()
    seen[:, : blocks.anchor] = causal[: blocks.anchor]
    seen[:, blocks.context :] = causal[blocks.context :]
    for block in range(blocks.count):
        span = blocks.span(block)
        seen[:, span, : blocks.anchor] = True
        seen[:, span, span] = causal[span, span]
        for earlier in range(block):
            kept = min(blocks.passing, blocks.size(earlier))
            if not kept:
                continue
            asked = query[:, blocks.context :]
            keys = key[:, blocks.span(earlier)]
            places = choose(asked, keys, kept, layer, earlier) + blocks.edges[earlier]
            for head in range(heads):
                seen[head, span, places[head // (heads // len(places))]] = True
    return seen


def under_a_mask(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """Attention in float64."""
    repeats = query.shape[0] // key.shape[0]
    keys = key.double().repeat_interleave(repeats, 0)
    values = value.double().repeat_interleave(repeats, 0)
    scores = query.double() @ keys.transpose(1, 2) * SCALING
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values


@pytest.mark.parametrize("choose", RULES.values(), ids=RULES)
@pytest.mark.parametrize(
    ("length", "context", "anchor", "passing", "count"),
    [
        (67, 59, 5, 3, 7),
        (40, 39, 1, 2, 16),  # blocks of two or three tokens
        (50, 41, 0, 4, 4),  # no anchor
        (50, 41, 6, 0, 4),  # nothing passed
        (30, 20, 3, 9, 1),
        (50, 41, 6, 9, 4),  # blocks of eight or nine: everything passed
    ],
)
def test_it_is_attention_under_a_mask(
    choose: Choose, length: int, context: int, anchor: int, passing: int, count: int
) -> None:
    blocks = divide(length, context, anchor, passing, count)
    # In float64: rounding of float32 differs by processor, and this is about which keys are seen.
    query, key, value = (part.double() for part in states(length))
    attend = partial(Work().attend, scaling=SCALING)
    output = attend_in_blocks(query, key, value, blocks, attend, 3, choose)
    seen = visible(query, key, blocks, choose, layer=3)
    assert (output - under_a_mask(query, key, value, seen)).abs().max() < 1e-12
    if passing >= max(blocks.size(block) for block in range(count)):
        assert torch.equal(seen[0], torch.ones(length, length).tril().bool())


def test_the_question_chooses() -> None:
    """The keys that its mean likes best, with their neighbours if scores are pooled."""
    query, key, _ = states(30)
    liked = query[:2].mean((0, 1))
    assert WITHOUT_NEIGHBOURS(query, key, 3, 0, 0)[0].tolist() == sorted(
        (key[0] @ liked).topk(3).indices.tolist()
    )
    peak = int((key[0] @ liked).argmax())
    pooled = keys_by_query(query, key, 5, 0, 0)[0].tolist()
    assert set(range(max(peak - 2, 0), min(peak + 3, 30))) <= set(pooled)


def test_half_of_the_sampled_keys_are_the_questions() -> None:
    """The others differ by head, layer and block, and lie all over the block."""
    query, key, _ = states(64)
    for count in (0, 1, 2, 9, 63, 64):
        kept = sampled_keys(query, key, count, 2, 1)
        assert kept.shape == (2, count)
        asked = keys_by_query(query, key, count // 2, 2, 1)
        for head in range(2):
            assert set(asked[head].tolist()) <= set(kept[head].tolist())
            assert (kept[head].diff() > 0).all()
    singles = {
        place
        for layer in range(8)
        for block in range(4)
        for (place,) in sampled_keys(query, key, 1, layer, block).tolist()
    }
    assert len(singles) > 32  # of 64 choices among 64 keys


def test_flops_are_those_of_the_formulas() -> None:
    """Equation 7 for both blocks of all hosts, with the terms that it leaves out."""
    blocks = divide(1000 + 24, 1000, 40, 16, 8)
    work = Work()
    query, key, value = states(1024)
    attend_in_blocks(query, key, value, blocks, partial(work.attend, scaling=1.0), layer=0)
    anchor, block, passing, asking, heads, width = 40, 120, 16, 24, 4, 8
    causal = sum(n * (n + 1) // 2 for n in (anchor, *[block] * 8, asking))
    passed = sum(j * passing * block for j in range(8))
    pairs = causal + 8 * anchor * block + passed + asking * 1000
    assert work.flops == 4 * heads * width * pairs


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("zigzag", [True, False])
def test_shares_cover_a_row_once(size: int, zigzag: bool) -> None:
    blocks = divide(211, 200, 9, 4, 16)
    shares = [Share(blocks, rank, size, zigzag) for rank in range(size)]
    owned = torch.cat([share.indices()[share.owned()] for share in shares])
    assert sorted(owned.tolist()) == list(range(211))
    anchors = torch.cat([torch.arange(9)[share.anchor_slice] for share in shares])
    assert anchors.tolist() == list(range(9))
    for share in shares:
        assert (share.indices().diff() > 0).all()
        assert len(share.indices()) == share.num_local


def test_pairs_of_blocks_are_those_of_the_paper() -> None:
    assert dealt(16, 8) == [[host, 15 - host] for host in range(8)]
