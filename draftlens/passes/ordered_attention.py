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

COLUMNS = 16
"""Columns of the product that sums weights, of which one is used: as many as registers hold."""

STEP = 64
"""Slots of the open block are read in multiples of this number: an engine prepares each size."""

HIDDEN = torch.finfo(torch.float32).min
"""Added to scores of keys that a token does not attend to, whose weights become zero."""


class OrderedAttention:
    """An `AttentionPass` over cached and new tokens; layers call it in their order. Its twin is
    that of `split_pass`.

    The blocks that are full before the pass are read in the cache. The keys of the open block are
    read together with the new keys, twice where a row crosses the end of its block: with the new
    ones that belong into this block, and with those of the next one.

    What does not depend on the layer is computed once for a pass.

    Args:
        keys, values: of each layer, ``[B, G, K, D]``, where K is a multiple of `BLOCK`.
        visible: as for `SplitPass.forward`; a row attends to its last cached token.
        layout: of this size (`layout_of`); only its sizes are read.
    """

    def __init__(
        self, keys: Sequence[Tensor], values: Sequence[Tensor], visible: Tensor, layout: Tensor
    ) -> None:
        self._cached = iter(zip(keys, values, strict=True))
        self._layouts: dict[tuple[int, int], _Layout] = {}
        reach = keys[0].shape[2]
        num_opened, num_blocks = layout.shape
        old = visible[:, 0, :, :reach]
        new = visible[:, 0, :, reach:]
        slots = torch.arange(reach)
        lengths = (old.any(1) * (slots + 1)).amax(-1)
        self._open = lengths // BLOCK
        width = visible.shape[2]
        in_open = self._open[:, None] * BLOCK + torch.arange(BLOCK)[:num_opened]
        open_old = old.gather(2, in_open[:, None].expand(-1, width, -1))
        places = lengths[:, None] + new.sum(-1) - 1  # of the new tokens, in their sequences
        is_next = (places // BLOCK > self._open[:, None])[:, None]
        is_full = (slots // BLOCK < self._open[:, None])[:, None]
        full_BNTS = (old & is_full).reshape(old.shape[0], width, -1, BLOCK).transpose(1, 2)
        here = torch.cat([open_old, new & ~is_next], -1)
        beyond = torch.cat([torch.zeros_like(open_old), new & is_next], -1)
        self._num_opened = num_opened
        self._full = _bias(full_BNTS)
        self._rest = _bias(torch.stack([here, beyond], 1)[:, :num_blocks])
        # A product adds in the order of the keys, which a sum over a dimension does not.
        self._ones = [
            torch.ones(old.shape[0], 1, 1, count, COLUMNS) for count in (BLOCK, here.shape[-1])
        ]

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
        # Numbers that a trace keeps as constants; rows and tokens stay variables of the graph.
        heads, groups, size, depth = map(int, (query.shape[1], *key.shape[1::2], value.shape[3]))
        layout = self._layout(groups, heads // groups)
        rows, width = query.shape[0], query.shape[2]
        cached_keys, cached_values = next(self._cached)
        full_keys, open_keys = layout.blocks(cached_keys, key, size)
        full_values, open_values = layout.blocks(cached_values, value, depth)
        queries = (query * (scaling or size**-0.5)).reshape(rows, groups, 1, -1, size)
        if heads == groups:  # products with a single row of queries add in another order
            queries = functional.pad(queries, (0, 0, 0, 1))
        full = queries @ full_keys.transpose(3, 4) + layout.full
        rest = queries @ open_keys.transpose(3, 4) + layout.rest
        largest = torch.maximum(full.amax((2, 4), keepdim=True), rest.amax((2, 4), keepdim=True))
        full_weights, rest_weights = (full - largest).exp(), (rest - largest).exp()
        values = [full_weights @ full_values, rest_weights @ open_values]
        sums = [full_weights @ self._ones[0], rest_weights @ self._ones[1]]
        output = torch.cat(values, 2).sum(2) / torch.cat(sums, 2).sum(2)[..., :1]
        if heads == groups:
            output = output[:, :, :-1]
        return output.reshape(rows, heads, width, depth).transpose(1, 2).contiguous(), None

    def _layout(self, groups: int, ratio: int) -> _Layout:
        if (groups, ratio) not in self._layouts:
            biases = [bias.repeat(1, 1, 1, ratio, 1) for bias in (self._full, self._rest)]
            if ratio == 1:
                biases = [functional.pad(bias, (0, 0, 0, 1)) for bias in biases]
            self._layouts[groups, ratio] = _Layout(self._open, self._num_opened, groups, *biases)
        return self._layouts[groups, ratio]


class _Layout:
    """What layers with the same heads share.

    Args:
        opened: the open block of each row.
        num_opened: slots of the open block that are read, 0 where all are empty.
        groups: key heads.
        full, rest: added to the scores of full blocks, and of the open one with the new keys.
    """

    def __init__(
        self, opened: Tensor, num_opened: Any, groups: int, full: Tensor, rest: Tensor
    ) -> None:
        self.full = full
        self.rest = rest
        self._groups = groups
        self._rows = opened.shape[0]
        heads = torch.arange(self._rows * groups).reshape(-1, groups)
        blocks = heads * full.shape[2] + opened[:, None]
        slots = blocks[..., None] * BLOCK + torch.arange(BLOCK)[:num_opened]
        self._opened = slots.flatten()

    def blocks(self, cached: Tensor, new: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Cached states ``[B, G, K, D]`` by blocks, ``[B, G, N, S, D]``, and the open block of each
        row with the new states, ``[B, G, 1, S + T, D]``."""
        blocks = cached.reshape(self._rows, self._groups, -1, BLOCK, size)
        opened = cached.reshape(-1, size).index_select(0, self._opened)
        opened = opened.reshape(self._rows, self._groups, -1, size)
        return blocks, torch.cat([opened, new], 2)[:, :, None]


def layout_of(lengths: Tensor, width: int) -> Tensor:
    """A tensor whose sizes say what a pass over new tokens reads besides full blocks: slots of
    the open block, none where all rows end with a full one, and how many blocks the new tokens
    belong to.

    Args:
        lengths: cached tokens of each row, int64 ``[B]``.
        width: new tokens. Products with fewer than `COLUMNS` keys add in another order.
    """
    filled = lengths % BLOCK
    most = int(filled.max())
    num_opened = -(-max(most, COLUMNS - width) // STEP) * STEP
    return torch.zeros(num_opened, 2 if most + width > BLOCK else 1)


def slots_read(lengths: Sequence[int], width: int) -> int:
    """Cached slots that such a pass is given: those of all full blocks and, if it is read, of the
    open one."""
    has_opened = len(layout_of(torch.tensor(lengths), width)) > 0
    return max((max(lengths) // BLOCK + has_opened) * BLOCK, BLOCK)


def _bias(visible_BNTS: Tensor) -> Tensor:
    """What is added to scores ``[B, G, N, R * T, S]``, before its repetition for each R."""
    bias = torch.zeros(visible_BNTS.shape, dtype=torch.float32)
    return bias.masked_fill(~visible_BNTS, HIDDEN)[:, None]
