"""One rank's part of a prefill: one pass over its share of the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.hosts import Hosts
from draftlens.prefill.spava.rank_attention import InShards, ShardAttention
from draftlens.prefill.spava.ring_attention import InRing, RingAttention
from draftlens.prefill.spava.sharded_attention import HeldRow
from draftlens.prefill.spava.sharded_scores import Local, Readers, probe_by_ranks

ShardAttentionPass = ShardAttention | RingAttention


@dataclass(frozen=True)
class Shard:
    """The share of one rank, as a job for it (`Hosts.give`).

    Args:
        prompt: the tokens of the rank; at least one for each row.
        owned: per row, indices among the rank's tokens of those that it owns, int64.
        places: per row, indices of the same tokens in the row.
        readers: of each row, if attention scores are requested; else empty.
        layers: those with hidden states that rank 0 needs, rising.
        numbers: under which the ranks above 0 keep the keys and values of each row; empty if they
            send them to rank 0.
    """

    prompt: Prompt
    maker: InShards | InRing
    owned: tuple[Tensor, ...]
    places: tuple[Tensor, ...]
    readers: tuple[Readers, ...]
    layers: tuple[int, ...]
    numbers: tuple[int, ...] = ()

    def local_readers(self, rank: int) -> list[Tensor]:
        """Per row, indices among the rank's tokens of the readers that it owns."""
        indices = []
        for row, readers in enumerate(self.readers):
            is_reader = torch.isin(self.places[row], readers.places[readers.owners == rank])
            indices.append(self.owned[row][is_reader])
        return indices

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        """Read the share, and keep it or send rank 0 what it needs."""
        outcome = read_shard(backbone, hosts, self)
        if self.numbers:
            hosts.kept.update(zip(self.numbers, outcome.held(), strict=True))
        else:
            for layer in range(len(outcome.cache.layers)):
                hosts.gather(outcome.layer_message(layer)).wait()
        if self.readers:
            hosts.gather(outcome.scores_message(hosts)).wait()
        for layer in self.layers:
            hosts.gather(outcome.states_message(layer)).wait()


@dataclass(frozen=True)
class Outcome:
    """The result of a rank's pass: logits ``[B, K, V]`` after each row's last tokens, hidden states
    ``[B, T, D]`` by layer, and queries ``[H, r, D]`` of the rank's readers by layer and row."""

    shard: Shard
    logits: Tensor
    cache: KVCache
    states: dict[int, Tensor]
    queries: list[list[Tensor]]
    attention: ShardAttentionPass

    def owned(self, layer: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Per row keys ``[H', n, D]`` and values ``[H', n, E]`` of the tokens that it owns."""
        states = self.cache.layers[layer]
        for row, places in enumerate(self.shard.owned):
            yield states.keys[row][:, places], states.values[row][:, places]

    def held(self) -> list[HeldRow]:
        """The same of all layers, row by row."""
        layers = [list(self.owned(layer)) for layer in range(len(self.cache.layers))]
        rows = []
        for row in range(len(self.shard.owned)):
            keys = tuple(layer[row][0] for layer in layers)
            rows.append(HeldRow(keys, tuple(layer[row][1] for layer in layers)))
        return rows

    def layer_message(self, layer: int) -> Tensor:
        """Per row keys and values of the tokens that the rank owns, as one flat tensor."""
        pieces = [states.flatten() for pair in self.owned(layer) for states in pair]
        return torch.cat(pieces)

    def scores_message(self, hosts: Hosts) -> Tensor:
        """By layer and row attention scores of the tokens that the rank owns, as one flat float32
        tensor; every rank calls it at the same time."""
        layers = []
        for number, queries in enumerate(self.queries):
            rows = zip(queries, self.owned(number), self.shard.places, strict=True)
            layers.append([Local(query, pair[0], places) for query, pair, places in rows])
        scalings = self.attention.scalings
        scores = probe_by_ranks(layers, scalings, self.shard.readers, hosts)
        return torch.cat([row for layer in scores for row in layer])

    def states_message(self, layer: int) -> Tensor:
        """Per row hidden states of the tokens that the rank owns, as one flat tensor."""
        states = self.states[layer]
        pieces = [states[row][places].flatten() for row, places in enumerate(self.shard.owned)]
        return torch.cat(pieces)


class _Recorder:
    """An `AttentionPass` that wraps another one and keeps the queries of some tokens."""

    def __init__(self, attention: ShardAttentionPass, readers: Sequence[Tensor]) -> None:
        self.queries: list[list[Tensor]] = []
        self._attention = attention
        self._readers = readers

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        reader_queries = [query[row][:, places] for row, places in enumerate(self._readers)]
        self.queries.append(reader_queries)
        return self._attention(module, query, key, value, mask, **kwargs)


@torch.inference_mode()  # as the passes that write the caches
def read_shard(backbone: Backbone, hosts: Hosts, shard: Shard) -> Outcome:
    """Read the tokens of one rank in one pass; every rank does it at the same time. Raises
    `HostError`, or `UnsupportedModelError` if the model does not pass its attention on."""
    cache = backbone.new_cache(shard.prompt, 0)
    attention = shard.maker.make(shard.prompt.lengths, hosts)
    recorder = _Recorder(attention, shard.local_readers(hosts.rank))
    with backbone.alone(), backbone.hidden_states(shard.layers) as states:
        logits = backbone.prefill(shard.prompt, cache, recorder)
    if attention.num_layers != len(cache.layers):
        raise UnsupportedModelError(
            f"{backbone.name} does not pass its attention on in every layer: use prefill 'full'"
        )
    return Outcome(shard, logits, cache, states, recorder.queries, attention)
