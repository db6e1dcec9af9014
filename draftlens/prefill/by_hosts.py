"""One prompt read by several hosts: shares are dealt, read at the same time, and collected.

Keys and values move to rank 0 once, behind the pass. Then the answer goes on there as behind any
other prefill, so every drafter works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftlens.attention import AttentionProbe
from draftlens.core.hosts import Hosts
from draftlens.core.readings import Readings
from draftlens.models.backbone import Backbone
from draftlens.models.gather import gather
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput
from draftlens.prefill.collector import ReadingCollector
from draftlens.prefill.reading import Reading
from draftlens.prefill.shard import Outcome, PassMaker, Shard, read_shard


class Held(Protocol):
    """What one rank holds of a row (`attention.blocks.Share`, `attention.ring.Chunks`)."""

    def indices(self) -> Tensor:
        """Places in the row of the rank's tokens, int64, rising."""
        ...

    def owned(self) -> Tensor:
        """Which of them it answers for, bool; every token of the row belongs to one rank."""
        ...


@dataclass(frozen=True)
class OnRankZero:
    """A row that rank 0 reads alone. Other ranks hold its first token, since a row of a pass cannot
    be empty, and do nothing with it.

    Args:
        length: tokens of the row.
        rank: which rank.
    """

    length: int
    rank: int

    def indices(self) -> Tensor:
        """See `Held.indices`."""
        return torch.arange(1 if self.rank else self.length)

    def owned(self) -> Tensor:
        """See `Held.owned`."""
        return torch.full((len(self.indices()),), self.rank == 0)


@dataclass(frozen=True)
class Hand:
    """A rank's share of a prompt.

    Args:
        held: what it holds of each row.
        maker: makes the attention of its pass.
    """

    held: Sequence[Held]
    maker: PassMaker


def read_by_hosts(
    backbone: Backbone, hosts: Hosts, reading: Reading, hands: Sequence[Hand]
) -> PrefillOutput:
    """Read a prompt by all hosts; called on rank 0.

    Args:
        backbone: of rank 0.
        hosts: the group.
        reading: what to read.
        hands: of all ranks, in order.

    Raises:
        HostError: a host is lost.
    """
    prompt = reading.prompt
    num_layers = backbone.text_config.num_hidden_layers
    collector = ReadingCollector(reading.spec, prompt, num_layers, reading.early)
    probe = AttentionProbe(prompt.visual, prompt.lengths)
    readers = probe.readers if reading.spec.attention else [torch.arange(0)] * len(prompt.lengths)
    shards: list[Shard] = []
    for hand in hands:
        num_logits = reading.num_logits if not shards else 1
        shards.append(_shard(prompt, hand, readers, tuple(collector.layers), num_logits))
    with hosts.answering():
        hosts.give(shards[1:])
        outcome = read_shard(backbone, hosts, shards[0])
        collected = _Collected(hosts, reading, hands, shards, outcome)
        collected.fill(probe if reading.spec.attention else None)
        for layer in collector.layers:
            collector.receive(layer, collected.states(layer))
    if not reading.spec:
        return PrefillOutput(outcome.logits, Readings())
    readings = collector.readings(probe if reading.spec.attention else None)
    return PrefillOutput(outcome.logits, readings)


def _shard(
    prompt: Prompt,
    hand: Hand,
    readers: Sequence[Tensor],
    layers: tuple[int, ...],
    num_logits: int,
) -> Shard:
    """The job of one rank."""
    indices = [held.indices() for held in hand.held]
    owned = []
    reading = []
    for row, held in enumerate(hand.held):
        is_owned = held.owned()
        is_reader = is_owned & torch.isin(indices[row], readers[row].cpu())
        owned.append(is_owned.nonzero()[:, 0])
        reading.append(is_reader.nonzero()[:, 0])
    return Shard(
        gather(prompt, indices), hand.maker, tuple(owned), tuple(reading), layers, num_logits
    )


class _Collected:
    """What the hosts send to rank 0, put in the order of the prompt.

    Args:
        hosts: the group.
        reading: what was read.
        hands, shards: of all ranks.
        outcome: of rank 0.
    """

    def __init__(
        self,
        hosts: Hosts,
        reading: Reading,
        hands: Sequence[Hand],
        shards: Sequence[Shard],
        outcome: Outcome,
    ) -> None:
        self._hosts = hosts
        self._reading = reading
        self._outcome = outcome
        self._rows = len(reading.prompt.lengths)
        self._length = reading.prompt.embeds.shape[1]
        self._owned: list[list[Tensor]] = []
        self._readers: list[list[Tensor]] = []
        for hand, shard in zip(hands, shards, strict=True):
            self._owned.append(_in_row(hand, shard.owned))
            self._readers.append(_in_row(hand, shard.readers))

    @torch.inference_mode()  # as the passes that write the cache
    def fill(self, probe: AttentionProbe | None) -> None:
        """Fill the cache with keys and values of all ranks, and let a probe read the scores of all
        readers."""
        cache = self._reading.cache
        for number, layer in enumerate(self._outcome.cache.layers):
            own = self._outcome.queries[number][0]
            keys = _whole(layer.keys, self._rows, self._length)
            values = _whole(layer.values, self._rows, self._length)
            queries = _whole(own[None], self._rows, self._length)
            sizes = self._layer_sizes(keys, values, queries)
            message = self._outcome.layer_message(number)
            for rank, piece in enumerate(self._hosts.gather(message, sizes).wait()):
                reader = _Pieces(piece)
                for row in range(self._rows):
                    owned = self._owned[rank][row]
                    reader.put(keys[row], owned)
                    reader.put(values[row], owned)
                    reader.put(queries[row], self._readers[rank][row])
            cache.layers[number].update(keys, values)
            if probe is not None:
                probe.add(queries, keys, self._outcome.attention.scalings[number])
        cache.truncate(self._reading.prompt.lengths)

    @torch.inference_mode()
    def states(self, layer: int) -> Tensor:
        """Hidden states of all tokens, ``[B, L, D]``."""
        own = self._outcome.states[layer]
        states = own.new_zeros(self._rows, self._length, own.shape[-1])
        sizes = [sum(map(len, rows)) * own.shape[-1] for rows in self._owned]
        message = self._outcome.states_message(layer)
        for rank, piece in enumerate(self._hosts.gather(message, sizes).wait()):
            reader = _Pieces(piece)
            for row in range(self._rows):
                # Viewed as one head.
                reader.put(states[row][None], self._owned[rank][row])
        return states

    def _layer_sizes(self, keys: Tensor, values: Tensor, queries: Tensor) -> list[int]:
        per_token = keys.shape[1] * (keys.shape[-1] + values.shape[-1])
        per_reader = queries.shape[1] * queries.shape[-1]
        sizes = []
        for owned, readers in zip(self._owned, self._readers, strict=True):
            num_owned = sum(map(len, owned))
            sizes.append(per_token * num_owned + per_reader * sum(map(len, readers)))
        return sizes


def _in_row(hand: Hand, places: Sequence[Tensor]) -> list[Tensor]:
    """Places in each row of some of a rank's tokens, given by their places among these."""
    return [held.indices()[local] for held, local in zip(hand.held, places, strict=True)]


def _whole(states: Tensor, rows: int, length: int) -> Tensor:
    """Zeros for all tokens, from some states ``[_, H, _, D]``: ``[rows, H, length, D]``."""
    return states.new_zeros(rows, states.shape[1], length, states.shape[-1])


class _Pieces:
    """Reads a flat message piece by piece."""

    def __init__(self, message: Tensor) -> None:
        self._message = message
        self._first = 0

    def put(self, states: Tensor, places: Tensor) -> None:
        """Write the next piece at some places of ``[H, L, D]``."""
        shape = (states.shape[0], len(places), states.shape[-1])
        end = self._first + states.shape[0] * len(places) * states.shape[-1]
        states[:, places] = self._message[self._first : end].view(shape)
        self._first = end
