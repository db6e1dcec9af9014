"""Exact attention under a mask of blocks: what sparse attention computes, without its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.prefill.spava.one_process_attention import scaling_of


@dataclass(frozen=True)
class Chosen:
    """The blocks that are computed.

    Args:
        kept: bool ``[H, Q', K']``, by head, block of queries and block of keys.
        flops: of the choice.
    """

    kept: Tensor
    flops: int


class Rule(Protocol):
    """Chooses blocks."""

    @property
    def query_block(self) -> int:
        """Queries of a block; the last block may be smaller."""
        ...

    @property
    def key_block(self) -> int:
        """Keys of a block; the last block may be smaller."""
        ...

    def choose(self, query: Tensor, key: Tensor, scaling: float) -> Chosen:
        """The blocks for one layer of one row.

        Args:
            query: rotated, ``[H, L, D]``.
            key: rotated, ``[H, L, D]``; shared keys are repeated for each of their heads.
            scaling: factor of the products.
        """
        ...


class MaskedAttention:
    """An `AttentionPass` that reads whole rows under a mask of blocks, causal inside of them.

    Args:
        rule: chooses blocks, anew in each layer.
        lengths: tokens of each row; padding comes behind them.

    Attributes:
        flops: of the products that the mask leaves, 2 (D + E) for each query, head and key, and of
            the choice.
        dense_flops: the same of causal attention.
        kept, visible: number of blocks that were computed, and that causal attention computes.
        num_layers: layers that have called it.
    """

    def __init__(self, rule: Rule, lengths: Sequence[int]) -> None:
        self.flops = 0
        self.dense_flops = 0
        self.kept = 0
        self.visible = 0
        self.num_layers = 0
        self._rule = rule
        self._lengths = list(lengths)

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """See `AttentionPass`."""
        scaling = scaling_of(query, kwargs)
        repeats = query.shape[1] // key.shape[1]
        keys = key.repeat_interleave(repeats, 1)
        values = value.repeat_interleave(repeats, 1)
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        for row, length in enumerate(self._lengths):
            states = (query[row, :, :length], keys[row, :, :length], values[row, :, :length])
            output[row, :, :length] = self._row(*states, scaling)
        self.num_layers += 1
        return output.transpose(1, 2), None

    def _row(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One row, ``[H, L, E]``, one block of queries at a time."""
        heads, length, width = query.shape
        chosen = self._rule.choose(query, key, scaling)
        output = query.new_empty(heads, length, value.shape[-1])
        per_pair = 2 * (width + value.shape[-1])
        for block, first in enumerate(range(0, length, self._rule.query_block)):
            queries = slice(first, min(first + self._rule.query_block, length))
            causal = visible(queries, queries.stop)
            kept = chosen.kept[:, block].repeat_interleave(self._rule.key_block, -1)
            seen = causal & kept[:, None, : queries.stop]
            output[:, queries] = attend_where(
                query[:, queries], key[:, : queries.stop], value[:, : queries.stop], seen, scaling
            )
            self.flops += per_pair * int(seen.sum())
            self.dense_flops += per_pair * heads * int(causal.sum())
            num_visible = -(-queries.stop // self._rule.key_block)
            self.kept += int(chosen.kept[:, block, :num_visible].sum())
            self.visible += heads * num_visible
        self.flops += chosen.flops
        return output


def visible(queries: slice, num_keys: int) -> Tensor:
    """Which of the first keys each query sees in causal attention, bool ``[T, K]``."""
    return torch.arange(num_keys) <= torch.arange(queries.start, queries.stop)[:, None]


def attend_where(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scaling: float) -> Tensor:
    """Attention to some keys, ``[H, T, E]``; zeros for queries that see none.

    Args:
        query: ``[H, T, D]``.
        key: ``[H, K, D]``.
        value: ``[H, K, E]``.
        seen: bool ``[H, T, K]``.
        scaling: factor of the products.
    """
    scores = (query @ key.transpose(1, 2) * scaling).masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1)
    # A softmax over nothing is NaN.
    return weights.masked_fill(~seen.any(-1, keepdim=True), 0.0) @ value


def block_order(num_queries: int, num_keys: int, query_block: int, key_block: int) -> Tensor:
    """Which blocks hold a pair of a query and a key that it sees, bool ``[Q', K']``."""
    last_query = (torch.arange(num_queries) + 1) * query_block - 1
    first_key = torch.arange(num_keys) * key_block
    return first_key <= last_query[:, None]
