"""Attention in blocks by several ranks (SPAVA, algorithm 1): what each of them computes.

A rank holds the anchor, its blocks and the query. It sends the keys that its blocks pass on, and
meanwhile computes everything that needs no other rank. The reference in one process is
`prefill.spava.one_process_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.flops import Attend, Work
from draftlens.prefill.spava.hosts import Arriving, Hosts
from draftlens.prefill.spava.lse_merge import Part, merge_parts, merge_running
from draftlens.prefill.spava.one_process_attention import scaling_of, taken
from draftlens.prefill.spava.passing_keys import SELECTS


@dataclass(frozen=True)
class _Local:
    """Rotated states of one row on this rank: ``[H, T, D]``, ``[H', T, D]`` and ``[H', T, E]``."""

    query: Tensor
    key: Tensor
    value: Tensor
    share: Share

    @property
    def query_span(self) -> slice:
        """The query's tokens."""
        blocks = self.share.blocks
        return slice(self.share.num_local - (blocks.length - blocks.context), self.share.num_local)

    @property
    def selection_query(self) -> Tensor:
        """Queries that choose passing keys."""
        return self.query[:, self.query_span]


class ShardAttention:
    """An `AttentionPass` over the tokens of one rank.

    Args:
        shares: this rank's part of each row; None for rows that rank 0 reads alone.
        lengths: tokens of each row on this rank; padding follows them.
        select: how passing keys are chosen (`prefill.spava.passing_keys.SELECTS`).
    """

    def __init__(
        self,
        shares: Sequence[Share | None],
        lengths: Sequence[int],
        hosts: Hosts,
        select: str = "query",
    ) -> None:
        self.work = Work()
        self.num_layers = 0
        self.scalings: list[float] = []
        self._shares = list(shares)
        self._lengths = list(lengths)
        self._hosts = hosts
        self._choose = SELECTS[select]

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
        divided: dict[int, _Local] = {}
        for row, share in enumerate(self._shares):
            real = slice(self._lengths[row])
            states = (query[row, :, real], key[row, :, real], value[row, :, real])
            if share is not None:
                divided[row] = _Local(*states, share)
            elif self._hosts.rank == 0:
                output[row, :, real] = attend(*states, causal=True).out
        rows = list(divided.values())
        # Both messages travel while `_without_passing` computes.
        passing = self._send_passing(rows, query, key, value)
        answers = self._send_answers(rows, query, value, attend)
        parts = [_without_passing(local, attend) for local in rows]
        passed = self._receive_passing(rows, passing, key, value)
        merged = self._receive_answers(rows, answers, query, value)
        for position, (row, local) in enumerate(divided.items()):
            _write(output[row], local, parts[position], passed[position], merged[position], attend)
        self.num_layers += 1
        self.scalings.append(scaling)
        return output.transpose(1, 2), None

    def _send_passing(
        self, rows: Sequence[_Local], query: Tensor, key: Tensor, value: Tensor
    ) -> Arriving:
        """Keys and values that the blocks of this rank pass on, row by row and block by block."""
        pieces = [key.new_empty(0)]
        for local in rows:
            blocks = local.share.blocks
            spans = local.share.local_spans()
            for block, span in zip(local.share.mine, spans, strict=True):
                count = blocks.passed(block)
                if count:
                    block_keys = local.key[:, span]
                    places = self._choose(
                        local.selection_query, block_keys, count, self.num_layers, block
                    )
                    pieces.append(taken(block_keys, places).flatten())
                    pieces.append(taken(local.value[:, span], places).flatten())
        per_key = key.shape[1] * (key.shape[-1] + value.shape[-1])
        sizes = [per_key * _num_passed(rows, rank) for rank in range(self._hosts.size)]
        return self._exchange(torch.cat(pieces), sizes)

    def _send_answers(
        self, rows: Sequence[_Local], query: Tensor, value: Tensor, attend: Attend
    ) -> Arriving:
        """The query's attention on this rank: output and log-sum-exp in one message."""
        pieces = [query.new_empty(0, dtype=torch.float32)]
        for local in rows:
            part = _query_part(local, attend)
            joined = torch.cat([part.out.float(), part.lse[..., None]], -1)
            pieces.append(joined.flatten())
        message = torch.cat(pieces)
        return self._exchange(message, [len(message)] * self._hosts.size)

    def _exchange(self, message: Tensor, sizes: Sequence[int]) -> Arriving:
        self.work.received += sum(sizes) - sizes[self._hosts.rank]
        self.work.waits += 1
        return self._hosts.all_gather(message, sizes)

    def _receive_passing(
        self, rows: Sequence[_Local], arriving: Arriving, key: Tensor, value: Tensor
    ) -> list[dict[int, tuple[Tensor, Tensor]]]:
        """Per row the passing keys and values by block."""
        passed: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in rows]
        heads = key.shape[1]
        for rank, message in enumerate(arriving.wait()):
            first = 0
            for position, local in enumerate(rows):
                for block in local.share.of(rank):
                    count = local.share.blocks.passed(block)
                    middle = first + heads * count * key.shape[-1]
                    end = middle + heads * count * value.shape[-1]
                    passed[position][block] = (
                        message[first:middle].view(heads, count, key.shape[-1]),
                        message[middle:end].view(heads, count, value.shape[-1]),
                    )
                    first = end
        return passed

    def _receive_answers(
        self, rows: Sequence[_Local], arriving: Arriving, query: Tensor, value: Tensor
    ) -> list[Tensor]:
        """Per row the query's attention over all ranks."""
        messages = arriving.wait()
        merged = []
        first = 0
        for local in rows:
            query_length = local.query_span.stop - local.query_span.start
            end = first + query.shape[1] * query_length * (value.shape[-1] + 1)
            parts = []
            for message in messages:
                joined = message[first:end].view(query.shape[1], query_length, -1)
                parts.append(Part(joined[..., :-1], joined[..., -1]))
            merged.append(merge_parts(parts).out)
            first = end
        return merged


def _num_passed(rows: Sequence[_Local], rank: int) -> int:
    """Keys of one head that a rank passes on, in all rows."""
    return sum(local.share.blocks.passed(block) for local in rows for block in local.share.of(rank))


def _query_part(local: _Local, attend: Attend) -> Part:
    """The query over the rank's slice of the anchor and its blocks; on rank 0 also over itself."""
    anchor = local.share.anchor_slice
    block_slice = slice(local.share.blocks.anchor, local.query_span.start)
    keys = torch.cat([local.key[:, anchor], local.key[:, block_slice]], 1)
    values = torch.cat([local.value[:, anchor], local.value[:, block_slice]], 1)
    query = local.query[:, local.query_span]
    context_part = attend(query, keys, values)
    if local.share.rank:
        return context_part
    query_part = attend(
        query, local.key[:, local.query_span], local.value[:, local.query_span], causal=True
    )
    return merge_running(Part(context_part.out.float(), context_part.lse), query_part)


def _without_passing(local: _Local, attend: Attend) -> list[Part]:
    """The anchor, and each block over the anchor and itself: all that needs no other rank."""
    anchor = slice(local.share.blocks.anchor)
    spans = local.share.local_spans()
    parts = [
        attend(local.query[:, anchor], local.key[:, anchor], local.value[:, anchor], causal=True)
    ]
    for span in spans:
        diagonal = attend(
            local.query[:, span], local.key[:, span], local.value[:, span], causal=True
        )
        shared = attend(local.query[:, span], local.key[:, anchor], local.value[:, anchor])
        parts.append(merge_running(shared, diagonal))
    return parts


def _write(
    output: Tensor,
    local: _Local,
    parts: Sequence[Part],
    passed: dict[int, tuple[Tensor, Tensor]],
    query_output: Tensor,
    attend: Attend,
) -> None:
    """Complete the blocks by their passing keys, and write the row ``[H, T, E]``."""
    blocks = local.share.blocks
    output[:, : blocks.anchor] = parts[0].out
    keys = torch.cat([passed[block][0] for block in range(blocks.count)], 1)
    values = torch.cat([passed[block][1] for block in range(blocks.count)], 1)
    spans = local.share.local_spans()
    for part, block, span in zip(parts[1:], local.share.mine, spans, strict=True):
        earlier = slice(sum(blocks.passed(number) for number in range(block)))
        if earlier.stop:
            part = merge_running(
                part, attend(local.query[:, span], keys[:, earlier], values[:, earlier])
            )
        output[:, span] = part.out
    output[:, local.query_span] = query_output


@dataclass(frozen=True)
class InShards:
    """Makes the `ShardAttention` of one rank, of its shares and given lengths."""

    shares: tuple[Share | None, ...]
    select: str = "query"

    def make(self, lengths: Sequence[int], hosts: Hosts) -> ShardAttention:
        return ShardAttention(self.shares, lengths, hosts, self.select)
