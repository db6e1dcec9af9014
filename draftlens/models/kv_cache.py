"""The key-value cache: preallocated, one length per row, and a rollback that costs nothing.

It is written at a position, as in gpt-fast: the slots beyond a row's length hold garbage that the
next pass overwrites. So forgetting rejected guesses is setting a number, and rows of a batch may
accept different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.models.attention.dispatch import AttentionPass
from draftlens.models.kv_buffers import LAYERS_PER_BLOCK, LayerBuffers, make_buffers
from draftlens.models.sharded_rows import SpreadRow

BLOCK = 1024
"""Tokens of answer that are reserved at once; longer answers let the buffers grow."""

GROWTH = 1.5
"""Factor by which full buffers grow, so that each token is copied a bounded number of times."""


class KVCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` over buffers ``[B, H, capacity, D]``, allocated at the first forward
    of each layer.

    One pass is: the model calls `update` once per layer (all write behind the same lengths), then
    the caller says how many of the new tokens count, with `advance`, and after verification which
    of them stay, with `keep`.

    Args:
        num_layers: decoder layers.
        rows: B.
        capacity: tokens that a row can hold, guesses included.
        grows: whether a pass beyond the capacity enlarges the buffers (by `GROWTH`) instead of
            raising `RuntimeError`.
        layers_per_block: layers whose buffers are allocated together. Those of another device,
            dtype or shape than the first layer of their block get buffers of their own.

    Attributes:
        lengths: tokens that each row holds.
        spread: for each row where its tokens are if several hosts hold them
            (`prefill.spava.sharded_cache`); empty if this process holds all.
    """

    spread: Sequence[SpreadRow] = ()
    _whole: _Whole | None = None

    def __init__(
        self,
        num_layers: int,
        rows: int,
        capacity: int,
        grows: bool = False,
        layers_per_block: int = LAYERS_PER_BLOCK,
    ) -> None:
        self.lengths = [0] * rows
        self.capacity = capacity
        self.grows = grows
        self.first_row = 0
        buffers = make_buffers(num_layers, layers_per_block)
        super().__init__(layers=[_Layer(self, layer_buffers) for layer_buffers in buffers])

    @property
    def uniform(self) -> bool:
        """Whether all rows are equally long, so that reads are views and writes are slices."""
        return min(self.lengths) == max(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes allocated so far for keys and values."""
        return sum(layer.buffers.nbytes for layer in self.layers)

    def whole_buffers(self, end: int) -> tuple[list[Any], list[Any]] | None:
        """Keys and values of each layer over the whole capacity, ``[B, H, capacity, D]``, for a
        pass that writes slots itself. The capacity is that of the buffers, the same in all layers.

        Args:
            end: slots of each row that the pass needs. Buffers that are smaller grow first.

        Returns:
            None before the first forward of a layer, and of a cache that must not grow.
        """
        layers: Any = self.layers
        whole = self._whole
        if whole is not None and end <= self.capacity and whole.is_of(self, layers):
            return whole.keys, whole.values
        if not all(layer.is_initialized for layer in layers):
            return None
        if end > self.capacity:
            if not self.grows:
                return None
            layers[0].enlarge(end)
        capacities = {layer.buffers.capacity for layer in layers}
        if len(capacities) > 1 or min(capacities) < self.capacity:
            for layer in layers:
                layer.widen(max(*capacities, self.capacity))
        self._whole = _Whole(self, layers)
        return self._whole.keys, self._whole.values

    def advance(self, counts: int | Sequence[int]) -> None:
        """Count the first `counts` tokens of the last pass (per row, or one number for all)."""
        steps = [counts] * len(self.lengths) if isinstance(counts, int) else counts
        self.lengths = [length + step for length, step in zip(self.lengths, steps, strict=True)]

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget everything beyond these lengths, one per row."""
        self.lengths = list(lengths)

    def keep(self, base: Sequence[int], slots: Sequence[Sequence[int]]) -> None:
        """Keep some of the slots behind `base`, in order and without gaps, and forget the rest.

        Args:
            base: per row, how many leading tokens stay where they are.
            slots: per row, strictly increasing offsets behind `base`: the accepted path of a tree.
        """
        moves = [
            (row, start + slot, start + place)
            for row, (start, row_slots) in enumerate(zip(base, slots, strict=True))
            for place, slot in enumerate(row_slots)
            if slot != place
        ]
        if moves:
            self._move(*torch.tensor(moves).unbind(1))
        self.lengths = [n + len(row_slots) for n, row_slots in zip(base, slots, strict=True)]

    @torch.inference_mode()  # as the passes that write the buffers
    def _move(self, rows: Tensor, source: Tensor, target: Tensor) -> None:
        """Copy slots within rows, in all layers; each argument is int64 ``[M]``."""
        layers: Any = self.layers
        places = (rows + self.first_row, source, target)
        for block in dict.fromkeys(layer.buffers.block for layer in layers):
            places = block.move(*places)

    def new_rows(self, count: int) -> KVCache:
        """A cache over further rows of the same buffers, for the prefill of rows that join.

        Nothing of the present rows is copied while spare rows are left; the spare rows are doubled
        when they are used up. `join` makes the new rows part of this cache.
        """
        rows = self._empty_rows(count)
        rows.first_row = len(self.lengths)
        rows.layers = [_Layer(rows, layer.buffers) for layer in self.layers]
        return rows

    def _empty_rows(self, count: int) -> KVCache:
        """A cache of the same kind that has no layers yet."""
        return KVCache(0, count, self.capacity, self.grows)

    def join(self, rows: KVCache) -> None:
        """Take over the rows of the last `new_rows`."""
        self.lengths = [*self.lengths, *rows.lengths]
        self.capacity = max(self.capacity, rows.capacity)
        self._whole = None

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place, and no other row moves."""
        last = len(self.lengths) - 1
        if row != last:
            for layer in self.layers:
                layer.buffers.copy_row(last, row, self.lengths[last])
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def taken(self, slots_by_layer: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Copies of the keys and values of some tokens of the prompts.

        Args:
            slots_by_layer: per layer and row their places in the prompt, int64 ``[K]``; K may
                differ by row.

        Yields:
            For each layer keys and values ``[B, H, K, D]``; anything behind the tokens of shorter
            rows.
        """
        for layer, slots in zip(self.layers, slots_by_layer, strict=True):
            index = _padded(slots).to(layer.device)
            rows = torch.arange(len(slots), device=layer.device)[:, None]
            # [B, K, H, D] after indexing by rows and slots; the cache's order is [B, H, K, D].
            keys = layer.keys[rows, :, index].transpose(1, 2)
            values = layer.values[rows, :, index].transpose(1, 2)
            yield keys, values

    def directing(
        self, tokens: Tensor, position_ids: Tensor, mask: Tensor | None
    ) -> AbstractContextManager[AttentionPass | None]:
        """Entered around a pass that appends tokens.

        Args:
            tokens, position_ids, mask: as for `Backbone.forward`.

        Returns:
            What computes the attention of the pass; None for the model itself.
        """
        return nullcontext()


def _padded(slots: Sequence[Tensor]) -> Tensor:
    """Places of each row as one table, int64 ``[B, K]``, zeros behind the shorter rows."""
    table = torch.zeros(len(slots), max(map(len, slots)), dtype=torch.long)
    for row, places in enumerate(slots):
        table[row, : len(places)] = places
    return table


class _Views:
    """Views of some rows of the buffers.

    Args:
        keys, values: the buffers; None before they are allocated.
        num_rows: number of rows.
        first: the first row.
    """

    def __init__(
        self, keys: Tensor | None, values: Tensor | None, num_rows: int, first: int = 0
    ) -> None:
        self.buffer = keys
        self.num_rows = num_rows
        self.keys = None if keys is None else keys[first : first + num_rows]
        self.values = None if values is None else values[first : first + num_rows]


class _Whole:
    """The result of `KVCache.whole_buffers`, kept since one pass after the other reads it.

    Args:
        cache: whose capacity its buffers have.
        layers: of it.
    """

    def __init__(self, cache: KVCache, layers: Sequence[_Layer]) -> None:
        views = [layer.rows() for layer in layers]
        self.keys = [view.keys for view in views]
        self.values = [view.values for view in views]
        self._num_rows = len(cache.lengths)
        self._capacity = cache.capacity
        self._ends = (layers[0].buffers.keys, layers[-1].buffers.keys)

    def is_of(self, cache: KVCache, layers: Sequence[_Layer]) -> bool:
        """Whether these are still the buffers. A pass goes through the layers in order, so the
        first or the last has new ones if any has."""
        return (
            self._num_rows == len(cache.lengths)
            and self._capacity == cache.capacity
            and self._ends[0] is layers[0].buffers.keys
            and self._ends[1] is layers[-1].buffers.keys
        )


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One decoder layer's view of its buffers; the lengths are the cache's."""

    def __init__(self, cache: KVCache, buffers: LayerBuffers) -> None:
        self.cache = cache
        self.buffers = buffers
        self._views = _Views(None, None, 0)
        super().__init__()

    @property
    def keys(self) -> Any:
        """Keys of the cache's rows, ``[B, H, capacity, D]``; None before the first forward."""
        return self.rows().keys

    @keys.setter
    def keys(self, value: None) -> None:
        """Transformers sets the attribute to None when a layer is made."""

    @property
    def values(self) -> Any:
        """Values of the cache's rows, ``[B, H, capacity, D]``; None before the first forward."""
        return self.rows().values

    @values.setter
    def values(self, value: None) -> None:
        """Transformers sets the attribute to None when a layer is made."""

    def rows(self) -> _Views:
        """Views of the cache's rows. They are kept, since every layer of every pass reads them."""
        buffers = self.buffers
        num_rows = len(self.cache.lengths)
        views = self._views
        if views.buffer is not buffers.keys or views.num_rows != num_rows:
            first = self.cache.first_row
            views = _Views(buffers.keys, buffers.values, num_rows, first)
            self._views = views
        return views

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate on the device and in the dtype in which this layer computes."""
        self.dtype = key_states.dtype
        self.device = key_states.device
        rows = self.cache.first_row + len(self.cache.lengths)
        self.buffers.reserve(rows, self.cache.capacity, key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[B, H, T, D]`` behind each row's length.

        Returns:
            Keys and values up to the end of the longest row, as views.
        """
        cache = self.cache
        num_tokens = key_states.shape[2]
        end = max(cache.lengths) + num_tokens
        if end > cache.capacity:
            self.enlarge(end)
        if not self.is_initialized or self.buffers.capacity < cache.capacity:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows()
        keys: Any = rows.keys
        values: Any = rows.values
        if cache.uniform:
            keys[:, :, end - num_tokens : end] = key_states
            values[:, :, end - num_tokens : end] = value_states
        else:
            start = torch.tensor(cache.lengths, device=self.device)[:, None]
            slots = start + torch.arange(num_tokens, device=self.device)
            row = torch.arange(len(cache.lengths), device=self.device)[:, None]
            keys[row, :, slots] = key_states.transpose(1, 2)
            values[row, :, slots] = value_states.transpose(1, 2)
        return keys[:, :, :end], values[:, :, :end]

    def widen(self, capacity: int) -> None:
        """Let the buffers of an initialized layer hold at least so many tokens of each row."""
        buffers = self.buffers
        assert buffers.keys is not None
        assert buffers.values is not None
        rows = self.cache.first_row + len(self.cache.lengths)
        buffers.reserve(rows, capacity, buffers.keys, buffers.values)

    def enlarge(self, end: int) -> None:
        """Raise the capacity of the cache.

        Raises:
            RuntimeError: it must not grow.
        """
        cache = self.cache
        if not cache.grows:
            raise RuntimeError(
                f"the cache holds {cache.capacity} tokens a row; {end} were asked of it"
            )
        cache.capacity = max(end, int(GROWTH * cache.capacity))
        cache._whole = None  # lest the smaller buffers stay in memory

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that the next `update` returns."""
        return max(self.cache.lengths) + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens held by the longest row."""
        return max(self.cache.lengths)

    def get_max_length(self) -> int:
        """Most tokens a row can hold."""
        return self.cache.capacity
