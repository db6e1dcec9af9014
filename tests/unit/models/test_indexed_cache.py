"""The keys of indexers stay with the keys of their tokens, whatever is done with the cache."""

from __future__ import annotations

import random

import pytest
import torch
import transformers
from torch import Tensor

from draftlens.drafting.draft_prompt import append_slots
from draftlens.models.indexed_cache import IndexedCache

WIDTH = 4
CONFIG = transformers.MistralLarge4TextConfig(
    num_hidden_layers=4,
    kv_source_layers=[0, 0, 0, 3],
    indexer_types=["full", "full", "shared", "full"],
    no_rope_layers=[1, 1, 1, 1],
)
"""The second layer has keys of an indexer only, and the third none at all."""


def cache_of(rows: int, capacity: int = 8) -> IndexedCache:
    return IndexedCache(CONFIG, rows, capacity, True)


@torch.inference_mode()  # as passes
def append(cache: IndexedCache, count: int) -> None:
    """A pass over tokens whose keys are random numbers, and their keys for indexers the same."""
    rows = len(cache.lengths)
    keys = torch.randn(rows, 1, count, WIDTH)
    for index in (0, 3):
        cache.update(keys, -keys, index)
    for index in (0, 1, 3):
        found = cache.update_indexer(2 * keys[:, 0], index)
        assert found.shape == (rows, max(cache.lengths) + count, WIDTH)
    cache.advance(count)


def check(cache: IndexedCache) -> None:
    for row, length in enumerate(cache.lengths):
        keys = cache.layers[0].keys[row, 0, :length]
        assert torch.equal(cache.layers[0].values[row, 0, :length], -keys)
        assert torch.equal(cache.layers[3].keys[row, 0, :length], keys)
        for index in (0, 1, 3):
            assert torch.equal(cache.layers[index].indexer.keys[row, 0, :length], 2 * keys)


def held(cache: IndexedCache) -> list[Tensor]:
    return [cache.layers[0].keys[row, :, :n].clone() for row, n in enumerate(cache.lengths)]


@pytest.mark.parametrize("seed", range(8))
def test_keys_stay_together(seed: int) -> None:
    generator = random.Random(seed)
    torch.manual_seed(seed)
    cache = cache_of(2)
    append(cache, 5)
    for _ in range(30):
        action = generator.choice(["pass", "pass", "join", "remove", "take", "store"])
        base = list(cache.lengths)
        if action == "pass":
            count = generator.randint(1, 6)
            append(cache, count)
            slots = [
                sorted(generator.sample(range(count), generator.randint(1, count))) for _ in base
            ]
            expected = [
                torch.cat([keys[:, :start], keys[:, start:][:, row_slots]], 1)
                for keys, start, row_slots in zip(held(cache), base, slots, strict=True)
            ]
            cache.keep(base, slots)
        elif action == "join":
            rows = cache.new_rows(generator.randint(1, 2))
            assert isinstance(rows, IndexedCache)
            append(rows, generator.randint(1, 9))
            expected = held(cache) + held(rows)
            cache.join(rows)
        elif action == "remove" and len(base) > 1:
            row = generator.randrange(len(base))
            expected = held(cache)
            last = expected.pop()
            if row < len(expected):
                expected[row] = last
            cache.remove(row)
        elif action == "take":
            slots = [torch.arange(0, length, 2) for length in base]
            expected = [k[:, s] for k, s in zip(held(cache), slots, strict=True)]
            taken = cache_of(len(base))
            append_slots(cache, taken, [slots] * len(cache.stores))
            cache = taken
        else:
            row = generator.randrange(len(base))
            states = cache.states(row, 0, base[row])
            expected = [*held(cache), held(cache)[row]]
            rows = cache.new_rows(1)
            rows.put(0, 0, states, base[row])
            rows.truncate([base[row]])
            cache.join(rows)
        assert all(map(torch.equal, held(cache), expected))
        check(cache)


def test_rows_of_another_cache_are_copied_whole() -> None:
    cache, other = cache_of(1), cache_of(2)
    append(cache, 3)
    append(other, 5)
    cache.join(cache.copied(other))
    assert cache.lengths == [3, 5, 5]
    check(cache)


def test_bytes_are_those_of_all_buffers() -> None:
    cache = cache_of(2, capacity=8)
    append(cache, 3)
    keys = 2 * 8 * WIDTH * 4
    assert cache.nbytes == 2 * 2 * keys + 3 * keys  # keys and values twice, three indexers


def test_passes_other_than_of_modules_get_no_buffers() -> None:
    cache = cache_of(1)
    append(cache, 3)
    assert cache.whole_buffers(4) is None
