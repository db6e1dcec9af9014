"""Attention whose result for a token has the same bits in every pass.

A sum of float32 numbers depends on the order of its terms. Products of matrices add the terms of an
element one after the other as long as they do not divide the summed dimension, which they do from
some hundreds of terms on. Terms that are zero change nothing. So keys are divided here, into blocks
of fixed slots, and the order within a block is that of the tokens: however many tokens, rows or
branches of a tree share a pass, and whether the keys before a token are cached or new.

Shape suffixes: B rows, G key heads, R query heads of each, T new tokens, N blocks, S `BLOCK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 256
"""Keys of a block, and the most new tokens of a pass, which then begins at most one new block."""

HIDDEN = torch.finfo(torch.float32).min
"""Added to scores of keys that a token does not attend to, whose weights become zero."""


class OrderedAttention:
    """An `AttentionPass` over cached and new tokens; layers call it in their order. Its twin is
    that of `split_pass`.

    The blocks that are full before the pass are read in the cache. The keys of the open block are
    read together with the new keys, twice: with the new ones that belong into this block, and
    with those of the next one.

    Args:
        keys, values: of each layer, ``[B, G, K, D]``.
        visible: as for `SplitPass.forward`; a row attends to its last cached token.
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], visible: Tensor) -> None:
        self._cached = iter(zip(keys, values, strict=True))
        reach = keys[0].shape[2]
        self._room = BLOCK - reach % BLOCK  # at least one: the open block may be empty
        old = functional.pad(visible[:, 0, :, :reach], (0, self._room))
        new = visible[:, 0, :, reach:]
        slots = torch.arange(reach + self._room)
        lengths = (old.any(1) * (slots + 1)).amax(-1)
        self._open = lengths // BLOCK
        width = visible.shape[2]
        in_open = (self._open[:, None] * BLOCK + torch.arange(BLOCK))[:, None]
        open_old = old.gather(2, in_open.expand(-1, width, -1))
        places = lengths[:, None] + new.sum(-1) - 1  # of the new tokens, in their sequences
        is_next = (places // BLOCK > self._open[:, None])[:, None]
        is_full = (slots // BLOCK < self._open[:, None])[:, None]
        full_NTS = (old & is_full).reshape(old.shape[0], width, -1, BLOCK).transpose(1, 2)
        here = torch.cat([open_old, new & ~is_next], -1)
        beyond = torch.cat([torch.zeros_like(open_old), new & is_next], -1)
        self._full = _bias(full_NTS)
        self._rest = _bias(torch.stack([here, beyond], 1))

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """See `AttentionPass`; the mask is `visible`."""
        rows, heads, width, size = query.shape
        groups = key.shape[1]
        ratio = heads // groups
        cached_keys, cached_values = next(self._cached)
        # Weights are summed by the same product as weighted values.
        full_keys, open_keys = self._blocks(cached_keys, key)
        full_values, open_values = self._blocks(_with_ones(cached_values), _with_ones(value))
        queries = (query * (scaling or size**-0.5)).reshape(rows, groups, 1, ratio * width, size)
        full, rest = (bias.repeat(1, 1, 1, ratio, 1) for bias in (self._full, self._rest))
        if ratio == 1:  # products with a single row of queries add in another order
            queries, full, rest = (
                functional.pad(each, (0, 0, 0, 1)) for each in (queries, full, rest)
            )
        full = queries @ full_keys.transpose(3, 4) + full
        rest = queries @ open_keys.transpose(3, 4) + rest
        largest = torch.maximum(full.amax((2, 4), keepdim=True), rest.amax((2, 4), keepdim=True))
        full = (full - largest).exp() @ full_values
        rest = (rest - largest).exp() @ open_values
        sums = torch.cat([full, rest], 2).sum(2)
        output = (sums[..., :-1] / sums[..., -1:])[:, :, : ratio * width]
        return output.reshape(rows, heads, width, -1).transpose(1, 2).contiguous(), None

    def _blocks(self, cached: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """Cached states ``[B, G, K, D]`` by blocks, ``[B, G, N, S, D]``, and the open block of each
        row with the new states, ``[B, G, 1, S + T, D]``."""
        rows, groups, _, size = cached.shape
        room = torch.zeros(rows, groups, self._room, size)
        blocks = torch.cat([cached, room], 2).reshape(rows, groups, -1, BLOCK, size)
        flat = blocks.reshape(-1, BLOCK, size)
        heads = torch.arange(rows * groups).reshape(rows, groups)
        places = (heads * blocks.shape[2] + self._open[:, None]).flatten()
        opened = flat.index_select(0, places).reshape(rows, groups, BLOCK, size)
        return blocks, torch.cat([opened, new], 2)[:, :, None]


def _bias(visible_BNTS: Tensor) -> Tensor:
    """What is added to scores ``[B, G, N, R * T, S]``, before its repetition for each R."""
    bias = torch.zeros(visible_BNTS.shape, dtype=torch.float32)
    return bias.masked_fill(~visible_BNTS, HIDDEN)[:, None]


def _with_ones(states: Tensor) -> Tensor:
    """States with a further element of one."""
    return torch.cat([states, torch.ones_like(states[..., :1])], -1)
