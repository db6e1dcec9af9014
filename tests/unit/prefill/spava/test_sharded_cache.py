"""Rows that several hosts hold, as rank 0 knows them."""

from __future__ import annotations

import gc

import torch

from draftlens.models.kv_cache import KVCache
from draftlens.prefill.spava.hosts import Alone
from draftlens.prefill.spava.sharded_cache import ShardedCache, SpreadRow


def filled(cache: KVCache, first: int) -> KVCache:
    """Rows of four tokens, whose keys are numbers."""
    rows = len(cache.lengths)
    keys = torch.arange(float(first), first + 4 * rows).view(rows, 1, 4, 1)
    cache.layers[0].update(keys, -keys)
    cache.advance(4)
    return cache


def kept(hosts: Alone, cache: KVCache) -> KVCache:
    """The same cache, of whose rows this rank keeps something, too."""
    for row in cache.spread:
        hosts.kept[row.number] = "a part"
    return cache


def test_rows_that_leave_are_kept_no_longer() -> None:
    """By nobody, also if they joined a running batch or their batch was given up."""
    hosts = Alone()
    cache = kept(hosts, filled(ShardedCache(1, 2, 4, hosts), 0))
    late = kept(hosts, filled(cache.new_rows(1), 8))
    cache.join(late)
    assert len(hosts.kept) == len(cache.spread) == 3
    numbers = [row.number for row in cache.spread]
    del late
    cache.remove(0)
    gc.collect()
    assert sorted(hosts.kept) == sorted(numbers[1:])
    assert [row.number for row in cache.spread] == [numbers[2], numbers[1]]
    del cache
    gc.collect()
    assert hosts.kept == {}


def test_rows_that_rank_zero_holds_alone_need_no_others() -> None:
    """Neither in a pass nor when a drafter takes keys and values."""
    cache = filled(ShardedCache(1, 2, 4, Alone()), 0)
    ids = torch.zeros(2, 1, dtype=torch.long)
    with cache.directing(ids, ids, None) as attention:
        assert attention is None
    ((keys, values),) = cache.taken([[torch.tensor([1, 3]), torch.tensor([2])]])
    assert keys[0, 0, :, 0].tolist() == [1, 3]
    assert values[1, 0, 0, 0] == -6


def test_tokens_are_found_where_they_are_held() -> None:
    row = SpreadRow(Alone())
    wanted = torch.tensor([0, 2, 3, 6])
    which, local = row.find(wanted, 0)
    assert (which.tolist(), local.tolist()) == ([0, 1, 2, 3], [0, 2, 3, 6])
    assert not row.is_spread
    row.places = (torch.tensor([0, 4, 6]), torch.tensor([1, 2, 3, 5]))
    assert row.is_spread
    which, local = row.find(wanted, 0)
    assert (which.tolist(), local.tolist()) == ([0, 3], [0, 2])
    which, local = row.find(wanted, 1)
    assert (which.tolist(), local.tolist()) == ([1, 2], [1, 2])
