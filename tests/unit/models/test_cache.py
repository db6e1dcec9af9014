"""The cache against a slow twin: a Python list of what each row holds."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.cache import KVCache, check_rollback

LAYERS, HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 2, 4, 6


class SlowCache:
    """Per layer and row the held (key ``[H, D]``, value) pairs in order."""

    def __init__(self, rows: int) -> None:
        self.held: list[list[list[tuple[Tensor, Tensor]]]] = [
            [[] for _ in range(rows)] for _ in range(LAYERS)
        ]

    def update(self, keys: Tensor, values: Tensor, layer: int) -> None:
        for row, held in enumerate(self.held[layer]):
            held.extend((keys[row, :, t], values[row, :, t]) for t in range(keys.shape[2]))

    def keep(self, base: list[int], slots: list[list[int]]) -> None:
        for rows in self.held:
            for row, (length, kept) in enumerate(zip(base, slots, strict=True)):
                rows[row] = rows[row][:length] + [rows[row][length + slot] for slot in kept]

    def truncate(self, lengths: list[int]) -> None:
        for rows in self.held:
            for row, length in enumerate(lengths):
                rows[row] = rows[row][:length]

    def stacked(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        keys, values = zip(*self.held[layer][row], strict=True)
        return torch.stack(keys, 1), torch.stack(values, 1)


def states(rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, HEADS, tokens, KEY_WIDTH), torch.randn(
        rows, HEADS, tokens, VALUE_WIDTH
    )


def forward(cache: KVCache, twin: SlowCache, tokens: int) -> None:
    """One pass, comparing what each layer reads."""
    rows, before = len(cache.lengths), list(cache.lengths)
    for layer in range(LAYERS):
        keys, values = states(rows, tokens)
        read = cache.update(keys, values, layer)
        twin.update(keys, values, layer)
        assert cache.lengths == before
        assert read[0].shape == (rows, HEADS, max(before) + tokens, KEY_WIDTH)
        for row in range(rows):
            length = before[row] + tokens
            for ours, theirs in zip(read, twin.stacked(layer, row), strict=True):
                assert torch.equal(ours[row, :, :length], theirs)
    cache.advance(tokens)


def check(cache: KVCache, twin: SlowCache) -> None:
    assert cache.lengths == [len(row) for row in twin.held[0]]
    for layer in range(LAYERS):
        for row, length in enumerate(cache.lengths):
            keys, values = twin.stacked(layer, row)
            assert torch.equal(cache.layers[layer].keys[row, :, :length], keys)
            assert torch.equal(cache.layers[layer].values[row, :, :length], values)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("ragged", [False, True])
def test_rounds_equal_the_slow_twin(rows: int, ragged: bool) -> None:
    rng = random.Random(rows)
    torch.manual_seed(0)
    cache, twin = KVCache(LAYERS, rows, 200), SlowCache(rows)
    forward(cache, twin, 7)
    if ragged:
        lengths = [7 - row for row in range(rows)]
        cache.truncate(lengths)
        twin.truncate(lengths)
    for _ in range(25):
        base, tokens = list(cache.lengths), rng.randint(1, 6)
        forward(cache, twin, tokens)
        slots = [sorted(rng.sample(range(tokens), rng.randint(0, tokens))) for _ in range(rows)]
        slots = slots if ragged else slots[:1] * rows
        cache.keep(base, slots)
        twin.keep(base, slots)
        check(cache, twin)
        assert cache.get_seq_length() == max(cache.lengths)
        if rng.random() < 0.3:
            lengths = [max(1, length - rng.randint(0, 2)) for length in cache.lengths]
            lengths = lengths if ragged else lengths[:1] * rows
            cache.truncate(lengths)
            twin.truncate(lengths)
            check(cache, twin)
    assert cache.uniform is (not ragged or rows == 1)


def test_rows_may_advance_by_different_counts() -> None:
    cache = KVCache(1, 2, 8)
    cache.update(*states(2, 3), 0)
    cache.advance([3, 1])
    assert cache.lengths == [3, 1]
    with pytest.raises(ValueError, match="zip"):
        cache.advance([1])


@pytest.mark.parametrize("lengths", [[5, 5], [5, 3]])
def test_reads_are_views(lengths: list[int]) -> None:
    cache = KVCache(1, 2, 10)
    cache.update(*states(2, 5), 0)
    cache.truncate(lengths)
    keys, values = cache.update(*states(2, 2), 0)
    layer = cache.layers[0]
    assert keys.data_ptr() == layer.keys.data_ptr()
    assert values.data_ptr() == layer.values.data_ptr()
    assert keys.shape[2] == values.shape[2] == 7


def test_buffers_never_move_and_nbytes_counts_them() -> None:
    cache = KVCache(LAYERS, 2, 12)
    assert cache.nbytes == 0
    cache.update(*states(2, 1), 0)
    one = 4 * 2 * HEADS * 12 * (KEY_WIDTH + VALUE_WIDTH)
    assert cache.nbytes == one
    cache.update(*states(2, 1), 1)
    assert cache.nbytes == 2 * one
    address = cache.layers[0].keys.data_ptr()
    cache.advance(1)
    cache.update(*states(2, 11), 0)
    cache.keep([1, 1], [[0, 4], [3]])
    assert cache.layers[0].keys.data_ptr() == address


@pytest.mark.parametrize("lengths", [[4, 4], [2, 4]])
def test_overflow_is_refused_before_anything_is_written(lengths: list[int]) -> None:
    cache = KVCache(1, 2, 6)
    cache.update(*states(2, 4), 0)
    cache.truncate(lengths)
    before = cache.layers[0].keys.clone()
    with pytest.raises(RuntimeError, match="the cache holds 6 tokens a row; 7 were asked of it"):
        cache.update(*states(2, 3), 0)
    assert torch.equal(cache.layers[0].keys, before)
    cache.update(*states(2, 2), 0)


def test_mask_sizes_are_those_of_the_next_read() -> None:
    cache = KVCache(1, 2, 9)
    cache.update(*states(2, 4), 0)
    cache.truncate([4, 2])
    assert cache.get_mask_sizes(3, 0) == (7, 0)
    assert cache.update(*states(2, 3), 0)[0].shape[2] == 7
    assert cache.layers[0].get_max_length() == 9


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("config", "layer"),
    [
        (transformers.MistralConfig(**SMALL, sliding_window=8), "DynamicSlidingWindowLayer"),
        (
            transformers.Qwen2Config(
                **SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=3
            ),
            "DynamicSlidingWindowLayer",
        ),
        (transformers.Gemma3TextConfig(**SMALL, sliding_window=8), "DynamicSlidingWindowLayer"),
        (transformers.Qwen3NextConfig(**SMALL), "LinearAttentionLayer"),
        (transformers.Qwen3_5TextConfig(**SMALL), "LinearAttentionLayer"),
        (
            transformers.Lfm2Config(**SMALL, layer_types=["conv"] * 3 + ["full_attention"]),
            "LinearAttentionLayer",
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_caches_that_cannot_roll_back_are_refused_by_kind(config: Any, layer: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match=f"^Some keeps a {layer}, which cannot be rolled back"
    ):
        check_rollback("Some", config)


@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen2Config", "Qwen3Config", "MistralConfig"])
def test_full_attention_is_taken(kind: str) -> None:
    options = {"sliding_window": None} if kind == "MistralConfig" else {}
    check_rollback("Some", getattr(transformers, kind)(**SMALL, **options))
