"""Sparse attention and pooled features, against loops over tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from benchmarks.spava_parts.baselines.masked import Chosen, MaskedAttention, Rule, block_order
from benchmarks.spava_parts.baselines.slowfast import SlowFast
from benchmarks.spava_parts.baselines.sparge import Sparge
from benchmarks.spava_parts.baselines.xattention import XAttention
from draftlens.models.prompt import Prompt

SCALING = 0.4


def states(length: int, heads: int = 2, width: int = 8) -> Tensor:
    """Queries or keys whose neighbours are alike."""
    generator = torch.Generator().manual_seed(length)
    noise = torch.randn(heads, length, width, generator=generator)
    return noise.cumsum(1) / torch.arange(1, length + 1)[:, None].sqrt()


@dataclass(frozen=True)
class Every:
    """Keeps the blocks of a table."""

    kept: Tensor
    query_block: int = 4
    key_block: int = 2

    def choose(self, query: Tensor, key: Tensor, scaling: float) -> Chosen:
        return Chosen(self.kept, 7)


def attended(rule: Rule, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, int]:
    attention = MaskedAttention(rule, [query.shape[1]])
    output, _ = attention(None, query[None], key[None], value[None], None, scaling=SCALING)
    return output[0].transpose(0, 1), attention.flops


def test_masked_attention_is_the_sum_over_the_keys_that_are_left() -> None:
    """Grouped queries, a last block that is not full, and a query without any key."""
    kept = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    kept[0, 0, 0] = False
    query, key, value = states(10), states(10, 1), states(10, 1).flip(1)
    output, flops = attended(Every(kept), query, key, value)
    pairs = 0
    for head in range(2):
        for place in range(10):
            seen = [k for k in range(place + 1) if kept[head, place // 4, k // 2]]
            pairs += len(seen)
            expected = torch.zeros(8, dtype=torch.float64)
            if seen:
                scores = key[0, seen].double() @ query[head, place].double() * SCALING
                expected = scores.softmax(0) @ value[0, seen].double()
            assert (output[head, place] - expected).abs().max() < 1e-6
    assert flops == 7 + 2 * (8 + 8) * pairs


def test_everything_kept_is_exact() -> None:
    query, key, value = states(300), states(300).flip(0), states(300).flip(1)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=SCALING
    )
    for rule in (XAttention(4, 1.1, 8), Sparge(similarity=2.0, queries=16, keys=8)):
        assert (attended(rule, query, key, value)[0] - exact).abs().max() < 1e-5


@pytest.mark.parametrize("length", [64, 37])
def test_antidiagonals(length: int) -> None:
    """Every score is the sum of the products on one antidiagonal of a square."""
    stride, block = 4, 8
    query, key = states(length), states(length).flip(0)
    rule = XAttention(stride, 0.7, block)
    num_blocks = -(-length // block)
    sums = torch.zeros(2, num_blocks, num_blocks)
    for head in range(2):
        for row in range(-(-length // stride)):
            scores = torch.zeros(row + 1)
            for column in range(row + 1):
                for step in range(stride):
                    i, j = row * stride + stride - 1 - step, column * stride + step
                    if max(i, j) < length:
                        scores[column] += query[head, i] @ key[head, j]
            weights = (scores * SCALING / stride).softmax(0)
            for column, weight in enumerate(weights):
                sums[head, row * stride // block, column * stride // block] += weight
    assert torch.allclose(rule.estimate(query, key, SCALING), sums, atol=1e-5)
    kept = rule.choose(query, key, SCALING).kept
    for head in range(2):
        for row in range(num_blocks):
            chosen = {0, row}
            others = sorted(range(1, row), key=lambda column: -sums[head, row, column])
            for column in others:
                if sum(sums[head, row, list(chosen)]) < 0.7 * sums[head, row].sum():
                    chosen.add(column)
            assert set(kept[head, row].nonzero().flatten().tolist()) == chosen
    assert not kept.all()


def test_means_of_similar_blocks() -> None:
    """Blocks are kept by the attention between means; those with unlike tokens are all kept."""
    rule = Sparge(similarity=0.8, share=0.7, queries=8, keys=4)
    query, key = states(37), states(37).flip(0)
    kept = rule.choose(query, key, SCALING).kept
    for head in range(2):
        centred = key[head] - key[head].mean(0)
        asked, asked_alike = blocks_of(query[head], 8)
        known, known_alike = blocks_of(centred, 4)
        for row, question in enumerate(asked):
            seen = [column for column in range(len(known)) if column * 4 <= row * 8 + 7]
            telling = [column for column in seen if known_alike[column]]
            expected = {column for column in seen if not known_alike[column]}
            if telling:
                scores = torch.stack([known[column] @ question * SCALING for column in telling])
                order = scores.softmax(0).sort(descending=True)
                count = max(1, int((order.values.cumsum(0) <= 0.7).sum()))
                expected |= {telling[int(place)] for place in order.indices[:count]}
            if not asked_alike[row]:
                expected = set(seen)
            assert set(kept[head, row].nonzero().flatten().tolist()) == expected
    assert not kept[:, block_order(5, 10, 8, 4)].all()


def blocks_of(tokens: Tensor, size: int) -> tuple[list[Tensor], list[bool]]:
    """Means of blocks, and whether the mean cosine of all their pairs is above 0.8."""
    means = []
    alike = []
    for block in tokens.split(size):
        means.append(block.mean(0))
        pairs = [torch.cosine_similarity(a, b, dim=0) for a in block for b in block]
        alike.append(float(sum(pairs)) / len(pairs) > 0.8)
    return means, alike


def test_slow_and_fast_features() -> None:
    frames, size, width = 7, 4, 3
    length = 2 + frames * size + 1 + 5
    embeds = torch.arange(length * width).view(1, length, width) * 1.0
    visual = torch.zeros(1, length, dtype=torch.bool)
    visual[0, 2 : 2 + frames * size + 1] = True
    places = torch.arange(length)[None]
    prompt = Prompt(embeds, places, [length], places[:, -1:] + 1, visual, {})
    pooled = SlowFast(every=3, frame=size).pooled(prompt)
    expected = [embeds[0, 0], embeds[0, 1]]
    for frame in (0, 3, 6):
        for pair in range(0, size, 2):
            first = 2 + frame * size + pair
            expected.append(torch.maximum(embeds[0, first], embeds[0, first + 1]))
    for frame in range(frames):
        first = 2 + frame * size
        expected.append(sum(embeds[0, first + place] for place in range(size)) / size)
    expected += list(embeds[0, 2 + frames * size :])
    assert torch.equal(pooled.embeds[0], torch.stack(expected))
    assert pooled.lengths == [len(expected)]
    assert pooled.position_ids.tolist() == [list(range(len(expected)))]
    assert int(pooled.next_position) == len(expected)
    assert int(pooled.visual.sum()) == 3 * 2 + 7 + 1
    with pytest.raises(ValueError, match="one clip at a time"):
        SlowFast(frame=100).pooled(prompt)
