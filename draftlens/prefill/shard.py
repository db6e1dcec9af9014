"""What one of several hosts does of a prefill: one pass over its share of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.attention import AttentionPass
from draftlens.attention.work import Work
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.hosts import Hosts
from draftlens.models.backbone import Backbone
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prompt


class ShardAttentionPass(AttentionPass, Protocol):
    """The attention of one rank's pass (`attention.shards`, `attention.ring`)."""

    work: Work
    num_layers: int
    scalings: list[float]


class PassMaker(Protocol):
    """Makes the attention of a rank's pass, in the process of that rank."""

    def make(self, lengths: Sequence[int], hosts: Hosts) -> ShardAttentionPass:
        """The attention of a pass over rows of these lengths."""
        ...


@dataclass(frozen=True)
class Shard:
    """The share of one rank, as a job for it (`Hosts.give`).

    Args:
        prompt: the tokens of the rank; at least one for each row.
        maker: makes the attention of the pass.
        owned: for each row, places among the rank's tokens of those for which it answers, int64.
        readers: for each row, places of tokens whose queries rank 0 needs for attention scores.
        layers: those whose hidden states rank 0 needs, rising.
        num_logits: as for `Prefill.run`; 1 on ranks above 0, whose logits nobody needs.
    """

    prompt: Prompt
    maker: PassMaker
    owned: tuple[Tensor, ...]
    readers: tuple[Tensor, ...]
    layers: tuple[int, ...]
    num_logits: int = 1

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        """Read the share and send rank 0 what it needs of it."""
        outcome = read_shard(backbone, hosts, self)
        for layer in range(len(outcome.cache.layers)):
            hosts.gather(outcome.layer_message(layer)).wait()
        for layer in self.layers:
            hosts.gather(outcome.states_message(layer)).wait()


@dataclass(frozen=True)
class Outcome:
    """The result of a rank's pass.

    Args:
        shard: what was read.
        logits: behind each row's last tokens, ``[B, K, V]``.
        cache: keys and values of the rank's tokens.
        states: hidden states ``[B, T, D]`` by layer.
        queries: queries ``[H, R, D]`` of the readers, by layer and row.
        attention: of the pass.
    """

    shard: Shard
    logits: Tensor
    cache: KVCache
    states: dict[int, Tensor]
    queries: list[list[Tensor]]
    attention: ShardAttentionPass

    def layer_message(self, layer: int) -> Tensor:
        """For each row keys and values of the tokens that the rank answers for, and queries of the
        readers, as one flat tensor."""
        pieces = []
        states = self.cache.layers[layer]
        for row, places in enumerate(self.shard.owned):
            pieces.append(states.keys[row][:, places].flatten())
            pieces.append(states.values[row][:, places].flatten())
            pieces.append(self.queries[layer][row].flatten())
        return torch.cat(pieces)

    def states_message(self, layer: int) -> Tensor:
        """For each row hidden states of the tokens that the rank answers for, as one flat
        tensor."""
        states = self.states[layer]
        pieces = [states[row][places].flatten() for row, places in enumerate(self.shard.owned)]
        return torch.cat(pieces)


class _Recorder:
    """An `AttentionPass` that keeps the queries of some tokens beside another one."""

    def __init__(self, attention: ShardAttentionPass, readers: Sequence[Tensor]) -> None:
        self.queries: list[list[Tensor]] = []
        self._attention = attention
        self._readers = readers

    def attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """See `AttentionPass.attend`."""
        kept = [query[row][:, places] for row, places in enumerate(self._readers)]
        self.queries.append(kept)
        return self._attention.attend(module, query, key, value, mask, **kwargs)


@torch.inference_mode()  # as the passes that write the caches
def read_shard(backbone: Backbone, hosts: Hosts, shard: Shard) -> Outcome:
    """Read the tokens of one rank in one pass; every rank does it at the same time.

    Raises:
        HostError: another rank is lost.
        UnsupportedModelError: the model does not pass its attention on.
    """
    cache = backbone.new_cache(shard.prompt, 0)
    attention = shard.maker.make(shard.prompt.lengths, hosts)
    recorder = _Recorder(attention, shard.readers)
    with backbone.alone(), backbone.hidden_states(shard.layers) as states:
        logits = backbone.prefill(shard.prompt, cache, recorder, shard.num_logits)
    if attention.num_layers != len(cache.layers):
        raise UnsupportedModelError(
            f"{backbone.name} does not pass its attention on in every layer: use prefill 'full'"
        )
    return Outcome(shard, logits, cache, states, recorder.queries, attention)
