"""Attention of new tokens to prompts that several ranks hold: each attends to its own keys, and the
parts are merged by log-sum-exp. Every rank forwards the new tokens. Only rank 0 keeps their keys
and values, and has the mask of their tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.prefill.spava.hosts import Hosts
from draftlens.prefill.spava.kernels import attend, attend_by_formula, nothing_seen
from draftlens.prefill.spava.lse_merge import Part, merge_running, merge_stacked
from draftlens.prefill.spava.one_process_attention import scaling_of


@dataclass(frozen=True)
class HeldRow:
    """A row on a rank above 0: per layer rotated keys ``[H', n, D]`` and values ``[H', n, E]``."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


@dataclass(frozen=True)
class AttentionOnRankZero:
    """Rank 0's part of the prompts, of `lengths` tokens without the new ones, and all tokens after
    them; the mask is bool ``[B, 1, T, K]``, None if new tokens attend to everything."""

    lengths: Sequence[int]
    mask: Tensor | None

    def seen(
        self, layer: int, row: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Part:
        """Attention of new tokens ``[H, T, D]`` on this rank; key ``[H', K, D]`` and value
        ``[H', K, E]`` are those that the layer's cache returns for the row. The mask applies
        between new tokens."""
        length = self.lengths[row]
        window = slice(length, length + query.shape[1])
        before = attend(query, key[:, :length], value[:, :length], scaling)
        visible = None if self.mask is None else self.mask[row, 0, :, window]
        among = attend_by_formula(query, key[:, window], value[:, window], scaling, visible=visible)
        return merge_running(before, among)


@dataclass(frozen=True)
class OnOtherRank:
    """The part of a rank above 0, None for rows of which it holds nothing."""

    rows: Sequence[HeldRow | None]

    def seen(
        self, layer: int, row: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Part:
        """As `AttentionOnRankZero.seen`; key and value are not read."""
        kept_row = self.rows[row]
        if kept_row is None:
            return nothing_seen(query, value)
        return attend(query, kept_row.keys[layer], kept_row.values[layer], scaling)


class SpreadAttention:
    """An `AttentionPass` of new tokens on one rank: one message per layer."""

    def __init__(self, source: AttentionOnRankZero | OnOtherRank, hosts: Hosts) -> None:
        self.num_layers = 0
        self._source = source
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
        joined = []
        for row in range(query.shape[0]):
            part = self._source.seen(
                self.num_layers, row, query[row], key[row], value[row], scaling
            )
            joined.append(torch.cat([part.out.to(part.lse), part.lse[..., None]], -1))
        message = torch.stack(joined)
        sizes = [message.numel()] * self._hosts.size
        arrived = self._hosts.all_gather(message.flatten(), sizes).wait()
        stacked = torch.stack([piece.view_as(message) for piece in arrived])
        # Every rank merges in the same order, so all go on with the same states.
        merged = merge_stacked(stacked[..., :-1], stacked[..., -1])
        self.num_layers += 1
        return merged.out.to(query.dtype).transpose(1, 2), None
