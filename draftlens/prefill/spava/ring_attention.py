"""Exact attention by several ranks; keys and values travel around a ring (Liu et al. 2023).

A row is cut into two chunks for each rank, of which rank h holds the chunks h and 2W-1-h, so that
all have about equal work under a causal mask. Every product is unmasked or square and causal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftlens.prefill.spava.blocks import near_equal_parts
from draftlens.prefill.spava.flops import Attend, Work
from draftlens.prefill.spava.hosts import Hosts
from draftlens.prefill.spava.lse_merge import Part, merge_running
from draftlens.prefill.spava.one_process_attention import scaling_of


@dataclass(frozen=True)
class Chunks:
    """One of several ranks' part of a row, which has at least one token for each chunk.

    Ranks above 0 also hold the last token of the row, which neither attends nor is attended to
    there: `dynamic` rotary frequencies follow the largest position of a forward, and so they are
    the same on all ranks.
    """

    length: int
    rank: int
    size: int

    @property
    def edges(self) -> list[int]:
        """Beginning of each chunk, and the end of the last."""
        edges = [0]
        for size in near_equal_parts(self.length, 2 * self.size):
            edges.append(edges[-1] + size)
        return edges

    def of(self, rank: int) -> tuple[int, int]:
        return rank, 2 * self.size - 1 - rank

    def held(self, rank: int) -> list[tuple[int, slice]]:
        """The chunks of a rank, and their slices of its tokens."""
        edges = self.edges
        first = 0
        spans = []
        for chunk in self.of(rank):
            size = edges[chunk + 1] - edges[chunk]
            spans.append((chunk, slice(first, first + size)))
            first += size
        return spans

    def num_held(self, rank: int) -> int:
        return sum(self.edges[chunk + 1] - self.edges[chunk] for chunk in self.of(rank))

    @property
    def num_local(self) -> int:
        """Tokens on this rank, the last token of the row included."""
        return self.num_held(self.rank) + (self.rank > 0)

    def indices(self) -> Tensor:
        """Row indices of the tokens of this rank, int64, rising."""
        pieces = []
        for chunk in self.of(self.rank):
            pieces.append(torch.arange(self.edges[chunk], self.edges[chunk + 1]))
        if self.rank:
            pieces.append(torch.tensor([self.length - 1]))
        return torch.cat(pieces)

    def owned(self) -> Tensor:
        """Which of them this rank owns, bool."""
        return torch.arange(self.num_local) < self.num_held(self.rank)


class RingAttention:
    """`ShardAttention` in a ring: an `AttentionPass` over the chunks of one rank; rank 0 reads rows
    without chunks (None) alone."""

    def __init__(self, rows: Sequence[Chunks | None], lengths: Sequence[int], hosts: Hosts) -> None:
        self.work = Work()
        self.num_layers = 0
        self.scalings: list[float] = []
        self._rows = list(rows)
        self._lengths = list(lengths)
        self._hosts = hosts

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        scaling = scaling_of(query, kwargs)
        attend = partial(self.work.attend, scaling=scaling)
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        if self._hosts.rank == 0:
            self._attend_whole(output, query, key, value, attend)
        for (row, chunk), part in self._attend_around(query, key, value, attend).items():
            chunks = self._rows[row]
            assert chunks is not None
            output[row, :, dict(chunks.held(self._hosts.rank))[chunk]] = part.out
        self.num_layers += 1
        self.scalings.append(scaling)
        return output.transpose(1, 2), None

    def _attend_whole(
        self, output: Tensor, query: Tensor, key: Tensor, value: Tensor, attend: Attend
    ) -> None:
        """Write the output of the undivided rows, which rank 0 reads alone."""
        for row, chunks in enumerate(self._rows):
            if chunks is None:
                real = slice(self._lengths[row])
                states = (query[row, :, real], key[row, :, real], value[row, :, real])
                output[row, :, real] = attend(*states, causal=True).out

    def _attend_around(
        self, query: Tensor, key: Tensor, value: Tensor, attend: Attend
    ) -> dict[tuple[int, int], Part]:
        """Attention of this rank's chunks over the keys of all ranks, by row and chunk. The next
        keys arrive while these are attended to."""
        parts: dict[tuple[int, int], Part] = {}
        message = self._message(key, value)
        for step in range(self._hosts.size):
            sender = (self._hosts.rank - step) % self._hosts.size
            arriving = None
            if step + 1 < self._hosts.size:
                following = (sender - 1) % self._hosts.size
                size = self._size(following, key, value)
                self.work.received += size
                self.work.waits += 1
                arriving = self._hosts.pass_on(message, size)
            self._attend_to(sender, message, query, key, value, parts, attend)
            if arriving is not None:
                (message,) = arriving.wait()
        return parts

    def _message(self, key: Tensor, value: Tensor) -> Tensor:
        pieces = [key.new_empty(0)]
        for row, chunks in enumerate(self._rows):
            if chunks is not None:
                num_keys = chunks.num_held(self._hosts.rank)
                pieces += [key[row, :, :num_keys].flatten(), value[row, :, :num_keys].flatten()]
        return torch.cat(pieces)

    def _size(self, rank: int, key: Tensor, value: Tensor) -> int:
        """Elements of the message of a rank."""
        per_token = key.shape[1] * (key.shape[-1] + value.shape[-1])
        return sum(per_token * row.num_held(rank) for row in self._rows if row is not None)

    def _attend_to(
        self,
        sender: int,
        message: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        parts: dict[tuple[int, int], Part],
        attend: Attend,
    ) -> None:
        """Let the chunks of this rank attend to those of another, and merge the results into
        `parts`, by row and chunk."""
        first = 0
        for row, chunks in enumerate(self._rows):
            if chunks is None:
                continue
            num_keys = chunks.num_held(sender)
            middle = first + key.shape[1] * num_keys * key.shape[-1]
            end = middle + key.shape[1] * num_keys * value.shape[-1]
            keys = message[first:middle].view(key.shape[1], num_keys, -1)
            values = message[middle:end].view(key.shape[1], num_keys, -1)
            first = end
            for mine, span in chunks.held(self._hosts.rank):
                for theirs, place in chunks.held(sender):
                    if theirs > mine:  # masked
                        continue
                    states = (query[row, :, span], keys[:, place], values[:, place])
                    part = attend(*states, causal=theirs == mine)
                    before = parts.get((row, mine))
                    if before is None:
                        parts[row, mine] = Part(part.out.float(), part.lse)  # sums in float32
                    else:
                        parts[row, mine] = merge_running(before, part)


@dataclass(frozen=True)
class InRing:
    """Makes the attention of one rank of a ring; arguments as for `RingAttention`."""

    rows: tuple[Chunks | None, ...]

    def make(self, lengths: Sequence[int], hosts: Hosts) -> RingAttention:
        return RingAttention(self.rows, lengths, hosts)
