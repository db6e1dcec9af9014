"""A cache with prompts that stay on the ranks that have read them. Rank 0 holds its share of every
prompt and all tokens after it, so trees, rollbacks and capacities concern rank 0 alone. All ranks
run each pass at once (`prefill.spava.sharded_attention`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.core.process_group import Hosts
from draftlens.models.adapter import Backbone
from draftlens.models.attention.dispatch import AttentionPass
from draftlens.models.kv_cache import KVCache
from draftlens.models.sharded_rows import SpreadRow
from draftlens.prefill.spava.sharded_attention import (
    AttentionOnRankZero,
    HeldRow,
    OnOtherRank,
    SpreadAttention,
)


class ShardedCache(KVCache):
    """`KVCache` of rank 0, which grows; its `lengths` count the tokens that rank 0 holds."""

    def __init__(self, num_layers: int, rows: int, capacity: int, hosts: Hosts) -> None:
        super().__init__(num_layers, rows, capacity, grows=True)
        self.hosts = hosts
        self.spread = [SpreadRow(hosts) for _ in range(rows)]

    def join(self, rows: KVCache) -> None:
        super().join(rows)
        self.spread = [*self.spread, *rows.spread]

    def remove(self, row: int) -> None:
        super().remove(row)
        self.spread = list(self.spread)
        self.spread[row] = self.spread[-1]
        self.spread.pop()

    def _empty_rows(self, count: int) -> KVCache:
        return ShardedCache(0, count, self.capacity, self.hosts)

    def taken(self, slots_by_layer: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """`KVCache.taken`; the other ranks send theirs."""
        if not any(row.is_spread for row in self.spread):
            yield from super().taken(slots_by_layer)
            return
        orders = [self._order(slots_by_layer, rank) for rank in range(self.hosts.size)]
        with self.hosts.answering():
            self.hosts.give(orders[1:])
            for layer, slots in enumerate(slots_by_layer):
                yield self._collected(layer, slots, orders)

    def _order(self, slots_by_layer: Sequence[Sequence[Tensor]], rank: int) -> Fetch:
        places = []
        for slots in slots_by_layer:
            matches = [
                row.find(row_slots, rank) for row, row_slots in zip(self.spread, slots, strict=True)
            ]
            places.append(tuple(local for _, local in matches))
        return Fetch(tuple(row.number for row in self.spread), tuple(places))

    def _collected(
        self, layer: int, slots: Sequence[Tensor], orders: Sequence[Fetch]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer from all ranks, in the order of the slots."""
        cache_layer = self.layers[layer]
        message = orders[0].message(
            layer, list(zip(cache_layer.keys, cache_layer.values, strict=True))
        )
        heads = cache_layer.keys.shape[1]
        width = cache_layer.keys.shape[-1]
        both_widths = width + cache_layer.values.shape[-1]
        sizes = [heads * both_widths * sum(map(len, order.places[layer])) for order in orders]
        states = cache_layer.keys.new_zeros(len(slots), heads, max(map(len, slots)), both_widths)
        for rank, piece in enumerate(self.hosts.gather(message, sizes).wait()):
            first = 0
            for row, row_slots in enumerate(slots):
                which, _ = self.spread[row].find(row_slots, rank)
                end = first + heads * both_widths * len(which)
                states[row, :, which] = piece[first:end].view(heads, len(which), both_widths)
                first = end
        return states[..., :width], states[..., width:]

    @contextmanager
    def directing(
        self, tokens: Tensor, position_ids: Tensor, mask: Tensor | None
    ) -> Iterator[AttentionPass | None]:
        """`KVCache.directing`. Inside, all ranks forward the same tokens."""
        if not any(row.is_spread for row in self.spread):
            yield None
            return
        job = Along(tuple(row.number for row in self.spread), tokens, position_ids)
        with self.hosts.answering():
            self.hosts.give([job] * (self.hosts.size - 1))
            yield SpreadAttention(AttentionOnRankZero(self.lengths, mask), self.hosts)


@dataclass(frozen=True)
class Along:
    """Job: forward tokens together with rank 0 (as `Backbone.forward`); `numbers` are the rows'."""

    numbers: tuple[int, ...]
    tokens: Tensor
    position_ids: Tensor

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        rows = [hosts.kept.get(number) for number in self.numbers]
        attention = SpreadAttention(OnOtherRank(rows), hosts)
        backbone.forward_along(self.tokens, self.position_ids, attention)


@dataclass(frozen=True)
class Fetch:
    """Job: send rank 0 the keys and values at `places`, int64 ``[n]`` per layer and row."""

    numbers: tuple[int, ...]
    places: tuple[tuple[Tensor, ...], ...]

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        kept_rows: list[HeldRow | None] = [hosts.kept.get(number) for number in self.numbers]
        for layer in range(len(self.places)):
            states = [
                None if row is None else (row.keys[layer], row.values[layer]) for row in kept_rows
            ]
            hosts.gather(self.message(layer, states)).wait()

    def message(self, layer: int, states: Sequence[tuple[Tensor, Tensor] | None]) -> Tensor:
        """The message of one layer, row by row, as one flat tensor, from keys ``[H', n, D]`` and
        values ``[H', n, E]`` of each row; None for rows of which the rank holds nothing."""
        pieces = []
        for row, places in zip(states, self.places[layer], strict=True):
            if row is not None:
                keys, values = row
                pieces.append(torch.cat([keys[:, places], values[:, places]], -1).flatten())
        return torch.cat(pieces) if pieces else torch.empty(0)
