"""A cache with prompts that stay on the ranks that have read them. Rank 0 holds its share of every
prompt and all tokens after it, so trees, rollbacks and capacities concern rank 0 alone. All ranks
run each pass at once (`prefill.spava.sharded_attention`)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.attention.dispatch import ARGUMENT, AttentionPass
from draftlens.models.kv_cache import KVCache
from draftlens.prefill.spava.hosts import Hosts
from draftlens.prefill.spava.sharded_attention import (
    AttentionOnRankZero,
    HeldRow,
    OnOtherRank,
    SpreadAttention,
)


class SpreadRow:
    """One row on rank 0; other ranks keep their part under `number` (`Hosts.kept`) while this
    lives. `places` has per rank the prompt indices of its tokens, int64 rising; empty if rank 0 has
    all."""

    def __init__(self, hosts: Hosts) -> None:
        self.number = hosts.new_number()
        self.places: tuple[Tensor, ...] = ()
        weakref.finalize(self, hosts.forget, self.number)

    @property
    def is_spread(self) -> bool:
        return any(len(places) for places in self.places[1:])

    def find(self, slots: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """Which of the prompt indices `slots` (int64 ``[K]``) a rank holds, and where the rank
        holds them, both int64 ``[n]``."""
        if not self.places:
            which = torch.arange(len(slots) if rank == 0 else 0)
            return which, slots.cpu()[which]
        places = self.places[rank]
        which = torch.isin(slots.cpu(), places).nonzero()[:, 0]
        return which, torch.searchsorted(places, slots.cpu()[which])


class ShardedCache(KVCache):
    """`KVCache` of rank 0, which grows; its `lengths` count the tokens that rank 0 holds."""

    is_local: ClassVar[bool] = False

    def __init__(self, num_layers: int, rows: int, capacity: int, hosts: Hosts) -> None:
        super().__init__(num_layers, rows, capacity, grows=True)
        self.hosts = hosts
        self.spread = [SpreadRow(hosts) for _ in range(rows)]

    def join(self, rows: KVCache) -> None:
        super().join(rows)
        self.spread = [*self.spread, *spread_rows(rows)]

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


def spread_rows(cache: KVCache) -> Sequence[SpreadRow]:
    """Where the tokens of each row are; empty if this process holds all."""
    return cache.spread if isinstance(cache, ShardedCache) else ()


@dataclass(frozen=True)
class Along:
    """Job: forward tokens together with rank 0 (as `Backbone.forward`); `numbers` are the rows'."""

    numbers: tuple[int, ...]
    tokens: Tensor
    position_ids: Tensor

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        rows = [hosts.kept.get(number) for number in self.numbers]
        attention = SpreadAttention(OnOtherRank(rows), hosts)
        with torch.inference_mode(), backbone.running(attention):
            backbone.decoder(
                inputs_embeds=backbone.embed(self.tokens),
                attention_mask=None,
                position_ids=self.position_ids,
                use_cache=False,
                **{ARGUMENT: attention},
            )


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
