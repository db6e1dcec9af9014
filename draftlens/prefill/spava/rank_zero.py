"""One prompt read by several ranks: shares are dealt, read at the same time, and collected. Keys
and values move to rank 0 after the pass, or stay where they are (`prefill.spava.sharded_cache`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from draftlens.prefill.base import FeatureCollector, PrefillOutput, PrefillReading
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.hosts import Hosts
from draftlens.prefill.spava.rank import Outcome, Shard, read_shard
from draftlens.prefill.spava.rank_attention import InShards
from draftlens.prefill.spava.ring_attention import Chunks, InRing
from draftlens.prefill.spava.sharded_cache import spread_rows
from draftlens.prefill.spava.sharded_scores import Readers


@dataclass(frozen=True)
class OnRankZero:
    """A row that rank 0 reads alone. Other ranks hold its first token, since a row of a pass cannot
    be empty, and do nothing with it."""

    length: int
    rank: int

    def indices(self) -> Tensor:
        """Row indices of the rank's tokens, int64, rising."""
        return torch.arange(1 if self.rank else self.length)

    def owned(self) -> Tensor:
        """Which of them it owns, bool; every token of the row has one owner."""
        return torch.full((len(self.indices()),), self.rank == 0)


RowPart = Share | Chunks | OnRankZero
"""One rank's part of a row: the indices of its tokens, and which of them it owns."""


@dataclass(frozen=True)
class Hand:
    """A rank's share of a prompt: its part of each row, and the maker of its attention."""

    parts: Sequence[RowPart]
    maker: InShards | InRing


def read_by_ranks(
    backbone: Backbone, hosts: Hosts, reading: PrefillReading, hands: Sequence[Hand]
) -> PrefillOutput:
    """Read a prompt by all ranks, with the hands of all in order; called on rank 0. If the cache is
    a `ShardedCache`, the ranks keep their keys and values, else they send them to rank 0.

    Raises:
        HostError: a rank is lost.
    """
    prompt = reading.prompt
    num_layers = backbone.text_config.num_hidden_layers
    collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
    probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
    places = [_places(hand) for hand in hands]
    readers = () if probe is None else _readers(probe, places)
    layers = tuple(collector.layers)
    numbers = tuple(row.number for row in spread_rows(reading.cache))
    shards = [_shard(prompt, hand, readers, layers, numbers) for hand in hands]
    with hosts.answering():
        hosts.give(shards[1:])
        outcome = read_shard(backbone, hosts, shards[0])
        collected = _Collected(hosts, reading, places, outcome)
        if numbers:
            collected.keep()
        else:
            collected.fill()
        if probe is not None:
            probe.by_layer += collected.scores()
        for layer in collector.layers:
            collector.receive(layer, collected.states(layer))
    if not reading.spec:
        return PrefillOutput(outcome.logits, PrefillFeatures())
    return PrefillOutput(outcome.logits, collector.readings(probe))


def _places(hand: Hand) -> list[Tensor]:
    """Per row the tokens that a rank owns."""
    return [part.indices()[part.owned()] for part in hand.parts]


def _readers(probe: AttentionProbe, places: Sequence[Sequence[Tensor]]) -> tuple[Readers, ...]:
    """The tokens of each row that have their attention measured, and their owners."""
    readers = []
    for row, in_row in enumerate(probe.readers):
        indices = in_row.cpu()
        owners = torch.zeros_like(indices)
        for rank, of_rank in enumerate(places):
            owners[torch.isin(indices, of_rank[row])] = rank
        readers.append(Readers(indices, owners))
    return tuple(readers)


def _shard(
    prompt: Prompt,
    hand: Hand,
    readers: tuple[Readers, ...],
    layers: tuple[int, ...],
    numbers: tuple[int, ...],
) -> Shard:
    indices = [part.indices() for part in hand.parts]
    owned = [part.owned().nonzero()[:, 0] for part in hand.parts]
    return Shard(
        prompt=gather(prompt, indices),
        maker=hand.maker,
        owned=tuple(owned),
        places=tuple(_places(hand)),
        readers=readers,
        layers=layers,
        numbers=numbers,
    )


class _Collected:
    """The messages of all ranks on rank 0, put in the order of the prompt. `places` has by rank and
    row the tokens that the rank owns."""

    def __init__(
        self,
        hosts: Hosts,
        reading: PrefillReading,
        places: Sequence[Sequence[Tensor]],
        outcome: Outcome,
    ) -> None:
        self._hosts = hosts
        self._reading = reading
        self._places = places
        self._outcome = outcome
        self._rows = len(reading.prompt.lengths)
        self._length = reading.prompt.embeds.shape[1]

    @torch.inference_mode()  # as the passes that write the cache
    def keep(self) -> None:
        """Fill the cache with rank 0's own tokens, and record where the others are."""
        cache = self._reading.cache
        lengths = [len(places) for places in self._places[0]]
        for number, layer in enumerate(self._outcome.cache.layers):
            keys = _whole(layer.keys, self._rows, max(lengths))
            values = _whole(layer.values, self._rows, max(lengths))
            for row, pair in enumerate(self._outcome.owned(number)):
                keys[row, :, : lengths[row]] = pair[0]
                values[row, :, : lengths[row]] = pair[1]
            cache.layers[number].update(keys, values)
        cache.truncate(lengths)
        for row, spread in enumerate(spread_rows(cache)):
            spread.places = tuple(of_rank[row] for of_rank in self._places)

    @torch.inference_mode()
    def fill(self) -> None:
        """Fill the cache with keys and values of all ranks."""
        cache = self._reading.cache
        for number, layer in enumerate(self._outcome.cache.layers):
            keys = _whole(layer.keys, self._rows, self._length)
            values = _whole(layer.values, self._rows, self._length)
            message = self._outcome.layer_message(number)
            sizes = self._sizes(keys.shape[1] * (keys.shape[-1] + values.shape[-1]))
            for rank, piece in enumerate(self._hosts.gather(message, sizes).wait()):
                reader = _Pieces(piece)
                for row, places in enumerate(self._places[rank]):
                    reader.put(keys[row], places)
                    reader.put(values[row], places)
            cache.layers[number].update(keys, values)
        cache.truncate(self._reading.prompt.lengths)

    @torch.inference_mode()
    def scores(self) -> list[Tensor]:
        """Attention scores of all tokens by layer, float32 ``[B, L]``, zero at text."""
        visual = self._reading.prompt.visual
        num_layers = len(self._outcome.cache.layers)
        scores = [torch.zeros(visual.shape, device=visual.device) for _ in range(num_layers)]
        message = self._outcome.scores_message(self._hosts)
        for rank, piece in enumerate(self._hosts.gather(message, self._sizes(num_layers)).wait()):
            reader = _Pieces(piece)
            for layer in scores:
                for row, places in enumerate(self._places[rank]):
                    reader.put(layer[row][None, :, None], places)
        return [layer * visual for layer in scores]

    @torch.inference_mode()
    def states(self, layer: int) -> Tensor:
        """Hidden states of all tokens, ``[B, L, D]``."""
        local_states = self._outcome.states[layer]
        states = local_states.new_zeros(self._rows, self._length, local_states.shape[-1])
        message = self._outcome.states_message(layer)
        for rank, piece in enumerate(
            self._hosts.gather(message, self._sizes(local_states.shape[-1])).wait()
        ):
            reader = _Pieces(piece)
            for row, places in enumerate(self._places[rank]):
                # Viewed as one head.
                reader.put(states[row][None], places)
        return states

    def _sizes(self, per_token: int) -> list[int]:
        """Elements of the messages of all ranks."""
        return [per_token * sum(map(len, of_rank)) for of_rank in self._places]


def _whole(states: Tensor, rows: int, length: int) -> Tensor:
    """Zeros for all tokens, from some states ``[_, H, _, D]``: ``[rows, H, length, D]``."""
    return states.new_zeros(rows, states.shape[1], length, states.shape[-1])


class _Pieces:
    def __init__(self, message: Tensor) -> None:
        self._message = message
        self._first = 0

    def put(self, states: Tensor, places: Tensor) -> None:
        """Write the next piece at some indices of ``[H, L, D]``."""
        shape = (states.shape[0], len(places), states.shape[-1])
        end = self._first + states.shape[0] * len(places) * states.shape[-1]
        states[:, places] = self._message[self._first : end].view(shape)
        self._first = end
