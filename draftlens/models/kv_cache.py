"""The key-value cache: preallocated, one length per row, and a rollback that costs nothing.

It is written at a position, as in gpt-fast: the slots beyond a row's length hold garbage that the
next pass overwrites. Removing rejected draft tokens is setting a number, and rows of a batch may
accept different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.core.sequence import replace_by_last
from draftlens.core.tree import upload
from draftlens.models.attention.dispatch import AttentionPass


@dataclass(frozen=True)
class HeldTokens:
    """The first tokens of a row.

    Args:
        namespace: of the request; rows of different namespaces share nothing.
        digests: of the tokens, uint8 ``[n, 16]`` (`models.prompt_cache`).
    """

    namespace: str
    digests: np.ndarray

    def followed_by(self, digests: np.ndarray) -> HeldTokens:
        return replace(self, digests=np.concatenate([self.digests, digests]))


LAYERS_PER_BLOCK = 8
"""Layers whose buffers are one tensor, so that accepted draft tokens of all of them move in one
operation. While full buffers grow, old and new ones of a whole block are in memory."""


class LayerBlock:
    """Keys and values of some layers, each one tensor ``[layers, B, H, capacity, D]``."""

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self.keys_by_layer: Sequence[Tensor] = ()
        self.values_by_layer: Sequence[Tensor] = ()
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def fits(self, keys: Tensor, values: Tensor) -> bool:
        if self._keys is None or self._values is None:
            return True
        return _alike(self._keys, keys) and _alike(self._values, values)

    def reserve(self, rows: int, capacity: int, keys: Tensor, values: Tensor) -> None:
        self._keys = _reserved(self._keys, self.num_layers, rows, capacity, keys)
        self._values = _reserved(self._values, self.num_layers, rows, capacity, values)
        if not self.keys_by_layer or self.keys_by_layer[0].shape != self._keys.shape[1:]:
            self.keys_by_layer = self._keys.unbind()
            self.values_by_layer = self._values.unbind()

    def move(self, places: Tensor) -> Tensor:
        """Copy slots within rows, in all layers: rows, sources and targets, int64 ``[3, M]``.
        Returns them on the device of this block, which the next block mostly shares."""
        for states in (self._keys, self._values):
            if states is not None:
                places = places.to(states.device, non_blocking=not places.is_cuda)
                rows, source, target = places
                states[:, rows, :, target] = states[:, rows, :, source]
        return places

    def move_to_front(self, row: int, slots: slice) -> None:
        """Copy slots of a row to its first ones, in all layers."""
        for states in (self._keys, self._values):
            if states is not None:
                stays = states[:, row, :, slots].clone()
                states[:, row, :, : stays.shape[2]] = stays


def _alike(stacked: Tensor, states: Tensor) -> bool:
    """Whether states ``[B, H, T, D]`` agree with a block in heads, width, dtype and device."""
    of_block = (stacked.shape[2], stacked.shape[4], stacked.dtype, stacked.device)
    return of_block == (states.shape[1], states.shape[3], states.dtype, states.device)


class LayerBuffers:
    """Keys and values of one layer for all rows, spare rows included."""

    slides = False  # whether passes read no more than `KVCache.first_seen` lets them

    def __init__(self, block: LayerBlock, index: int) -> None:
        self.block = block
        self.index = index
        self.is_reserved = False

    @property
    def keys(self) -> Tensor | None:
        """``[B, H, capacity, D]``, the same object until they grow; None before `reserve`."""
        return self.block.keys_by_layer[self.index] if self.is_reserved else None

    @property
    def values(self) -> Tensor | None:
        return self.block.values_by_layer[self.index] if self.is_reserved else None

    @property
    def capacity(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, rows: int, capacity: int, keys: Tensor, values: Tensor) -> None:
        """Make room for at least `rows` rows of `capacity` tokens, in all layers of the block. The
        states ``[B, H, T, D]`` provide device, dtype, heads and widths."""
        if not self.block.fits(keys, values):
            self.block = LayerBlock(1)
            self.index = 0
        self.block.reserve(rows, capacity, keys, values)
        self.is_reserved = True

    @torch.inference_mode()  # as the passes that write the buffers
    def copy_row(self, source: int, target: int, length: int) -> None:
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[target, :, :length] = buffer[source, :, :length]


def make_buffers(num_layers: int, layers_per_block: int) -> list[LayerBuffers]:
    buffers: list[LayerBuffers] = []
    for first in range(0, num_layers, layers_per_block):
        size = min(layers_per_block, num_layers - first)
        block = LayerBlock(size)
        buffers += [LayerBuffers(block, index) for index in range(size)]
    return buffers


def _reserved(
    buffer: Tensor | None, num_layers: int, rows: int, capacity: int, states: Tensor
) -> Tensor:
    """A buffer ``[layers, B, H, capacity, D]`` grown to this size by zeros, since 0 x NaN is
    NaN."""
    if buffer is None:
        return states.new_zeros(num_layers, rows, states.shape[1], capacity, states.shape[-1])
    old_rows = buffer.shape[1]
    old_capacity = buffer.shape[3]
    if rows <= old_rows and capacity <= old_capacity:
        return buffer
    num_rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
    num_heads, width = buffer.shape[2], buffer.shape[4]
    size = (num_layers, num_rows, num_heads, max(capacity, old_capacity), width)
    grown = buffer.new_zeros(size)
    grown[:, :old_rows, :, :old_capacity] = buffer
    return grown


LayerStates = tuple[Tensor, Tensor]
"""Keys and values of one layer and row, each ``[H, n, D]``."""

BLOCK = 1024
"""Tokens of an answer that are reserved at once."""

GROWTH = 1.5
"""Factor by which full buffers grow, so that each token is copied a bounded number of times."""


class KVCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` over buffers ``[B, H, capacity, D]``, each allocated at first use.

    In one pass the model calls `update` once per layer (all write after the same lengths), then the
    caller counts the new tokens by `advance` and, after verification, selects those that stay by
    `keep`.

    Args:
        rows: B.
        capacity: tokens that a row can hold, draft tokens included.
        grows: whether a pass beyond the capacity enlarges the buffers (by `GROWTH`, or to the next
            multiple of `step`) instead of raising `RuntimeError`.
        layers_per_block: layers whose buffers are allocated together. Those of another device,
            dtype or shape than the first layer of their block get buffers of their own.

    Attributes:
        lengths: tokens that each row holds.
        step: of the capacity, for passes that compute over empty slots, too; 0 for none.
        held: by row the first of its tokens as a prompt cache knows them; None where it does not.
        first_seen: the first slot that the next pass reads in layers that slide.
        is_local: whether this process holds all tokens; a pass of a cache that is not local needs
            `directing`.
    """

    is_local: ClassVar[bool] = True
    step = 0
    first_seen = 0
    _whole: _Whole | None = None
    _slots: tuple[Any, Tensor, Tensor] | None = None

    def __init__(
        self,
        num_layers: int,
        rows: int,
        capacity: int,
        grows: bool = False,
        layers_per_block: int = LAYERS_PER_BLOCK,
    ) -> None:
        self.lengths = [0] * rows
        self.held: list[HeldTokens | None] = [None] * rows
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
    def starts(self) -> list[int]:
        """Of each row, the slots before its next token that sliding layers hold."""
        return self.lengths

    def whole(self) -> KVCache:
        """An empty cache like this empty one, of which all slots of all layers can be read at any
        time."""
        return self

    def begin_pass(self, width: int, counts: Sequence[int] | None = None) -> None:
        """Called before a pass over `width` tokens of each row; `counts` says how many of them
        belong to the row in a prompt or a part of one, None for other tokens."""

    def collect(self, collects: bool) -> None:
        """Let `states` also have what layers drop of the prompts that are read from now on, until
        it is called again."""

    def first_needed(self, length: int) -> int:
        """The first of a row's `length` tokens whose states later passes read in all layers."""
        return 0

    @property
    def stores(self) -> list[Any]:
        """What holds states of tokens, as layers: they are kept, moved and copied together."""
        return self.layers  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes allocated so far for the states of tokens."""
        return sum(store.buffers.nbytes for store in self.stores)

    def whole_buffers(self, end: int) -> tuple[list[Any], list[Any]] | None:
        """Keys and values of each layer, ``[B, H, capacity, D]``, for a pass that writes slots
        itself. Buffers with fewer than `end` slots per row grow first, all to the same capacity.
        None before the first forward of a layer, or if the cache is too small and must not grow."""
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
        """Drop everything beyond these lengths, one per row."""
        self.lengths = list(lengths)

    def reach(self, row: int, length: int, floor: int | None = None) -> int:
        """The most tokens of a row, up to `length`, that can stay; later calls ask for `floor`."""
        return length

    def keep(self, base: Sequence[int], slots: Sequence[Sequence[int]]) -> None:
        """Keep some slots after `base` (per row, the tokens that stay in place), without gaps, and
        drop the rest; `slots` are strictly increasing offsets: the accepted path of a tree."""
        moves = [
            (row, start + slot, start + place)
            for row, (start, row_slots) in enumerate(zip(base, slots, strict=True))
            for place, slot in enumerate(row_slots)
            if slot != place
        ]
        if moves:
            self._move(torch.tensor(moves).t())
        self.lengths = [n + len(row_slots) for n, row_slots in zip(base, slots, strict=True)]

    @torch.inference_mode()  # as the passes that write the buffers
    def _move(self, places: Tensor) -> None:
        """Copy slots within rows, in all layers: rows, sources and targets, int64 ``[3, M]``."""
        places[0] += self.first_row
        for block in dict.fromkeys(store.buffers.block for store in self.stores):
            places = block.move(places)

    def new_rows(self, count: int) -> KVCache:
        """A cache over further rows of the same buffers, for the prefill of rows that `join` later.
        Present rows are copied only when spare rows are used up, which then double."""
        rows = self._empty_rows(count)
        rows.step = self.step
        rows.first_row = len(self.lengths)
        rows.layers = [layer.of_rows(rows) for layer in self.layers]
        return rows

    def shares(self, other: KVCache) -> bool:
        """Whether these are rows of the buffers of another cache (`new_rows`)."""
        return self.layers[0].buffers is other.layers[0].buffers  # type: ignore[no-any-return]

    @torch.inference_mode()
    def copied(self, rows: KVCache) -> KVCache:
        """Rows of another cache as further rows of these buffers."""
        copy = self.new_rows(len(rows.lengths))
        for row, length in enumerate(rows.lengths):
            states = [(store.keys[row], store.values[row]) for store in rows.stores]
            copy.put(row, 0, states, length)
        copy.lengths = list(rows.lengths)
        copy.held = list(rows.held)
        return copy

    def _empty_rows(self, count: int) -> KVCache:
        return KVCache(0, count, self.capacity, self.grows)

    def join(self, rows: KVCache) -> None:
        self.lengths = [*self.lengths, *rows.lengths]
        self.held += rows.held
        self.capacity = max(self.capacity, rows.capacity)
        self._whole = None

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place, and no other row moves."""
        last = len(self.lengths) - 1
        if row != last:
            for store in self.stores:
                store.buffers.copy_row(last, row, self.lengths[last])
        replace_by_last(self.lengths, row)
        replace_by_last(self.held, row)

    @torch.inference_mode()  # as the passes that write the buffers
    def put(self, row: int, start: int, states: Sequence[LayerStates], count: int) -> None:
        """Write the first `count` tokens of `states` to a row's slots from `start` on; the lengths
        stay. A `WindowedCache` also takes states of sliding layers without the first tokens."""
        for store, (keys, values) in zip(self.stores, states, strict=True):
            if keys.shape[1] < count:
                raise RuntimeError("sliding layers have dropped the states of some of these tokens")
            store.put(row, start, keys[:, :count], values[:, :count])

    @torch.inference_mode()
    def states(self, row: int, first: int, last: int) -> list[LayerStates]:
        """Copies of a row's keys and values from slot `first` up to `last`, by store; those of
        sliding layers may begin later."""
        return [store.copied(row, slice(first, last)) for store in self.stores]

    def taken(self, slots_by_layer: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each store copies of keys and values ``[B, H, K, D]``, undefined after a shorter
        row's tokens; `slots_by_layer` has the prompt indices int64 ``[K]`` per store and row."""
        for store, slots in zip(self.stores, slots_by_layer, strict=True):
            yield store.taken(slots)

    def write(self, buffer: Tensor, states: Tensor, starts: Sequence[int]) -> None:
        """Write states ``[B, H, T, D]`` to a buffer ``[B, H, capacity, D]`` from a slot of each row
        on."""
        num_tokens = states.shape[2]
        if starts.count(starts[0]) == len(starts):  # slices are faster than index tensors
            buffer[:, :, starts[0] : starts[0] + num_tokens] = states
            return
        key = (tuple(starts), num_tokens, buffer.device)
        if self._slots is None or self._slots[0] != key:  # the layers of a pass mostly share them
            slots = upload([range(first, first + num_tokens) for first in starts], buffer.device)
            self._slots = key, torch.arange(len(starts), device=buffer.device)[:, None], slots
        buffer[self._slots[1], :, self._slots[2]] = states.transpose(1, 2)

    def directing(
        self, tokens: Tensor, position_ids: Tensor, mask: Tensor | None
    ) -> AbstractContextManager[AttentionPass | None]:
        """Entered around a pass that appends tokens (as `Backbone.forward`); yields what computes
        its attention, None for the model itself."""
        return nullcontext()


class _Views:
    """Views of some rows of the buffers; None before these are allocated."""

    def __init__(self, keys: Any, values: Any, num_rows: int, first: int = 0) -> None:
        self.buffer = keys
        self.num_rows = num_rows
        self.keys: Any = None if keys is None else keys[first : first + num_rows]
        self.values: Any = None if values is None else values[first : first + num_rows]


class _Whole:
    """The result of `KVCache.whole_buffers`, kept because successive passes read it."""

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

    def of_rows(self, cache: KVCache) -> _Layer:
        """The layer of a cache of other rows of the same buffers."""
        return type(self)(cache, self.buffers)

    @property
    def keys(self) -> Any:
        """``[B, H, capacity, D]``; None before the first forward."""
        return self.rows().keys

    @keys.setter
    def keys(self, value: None) -> None:
        """Transformers sets the attribute to None when a layer is made."""

    @property
    def values(self) -> Any:
        return self.rows().values

    @values.setter
    def values(self, value: None) -> None:
        """Transformers sets the attribute to None when a layer is made."""

    def rows(self) -> _Views:
        """Views of the cache's rows, kept because every layer of every pass reads them."""
        buffers = self.buffers
        num_rows = len(self.cache.lengths)
        views = self._views
        if views.buffer is not buffers.keys or views.num_rows != num_rows:
            first = self.cache.first_row
            views = _Views(buffers.keys, buffers.values, num_rows, first)
            self._views = views
        return views

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype = key_states.dtype
        self.device = key_states.device
        rows = self.cache.first_row + len(self.cache.lengths)
        self.buffers.reserve(rows, self.cache.capacity, key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[B, H, T, D]`` after each row's length; returns views of what the pass reads."""
        cache = self.cache
        num_tokens = key_states.shape[2]
        end = max(cache.lengths) + num_tokens
        if end > cache.capacity:
            self.enlarge(end)
        if not self.is_initialized or self.buffers.capacity < cache.capacity:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows()
        keys, values = rows.keys, rows.values
        cache.write(keys, key_states, cache.lengths)
        cache.write(values, value_states, cache.lengths)
        first = cache.first_seen if self.buffers.slides else 0
        return keys[:, :, first:end], values[:, :, first:end]

    def taken(self, slots: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        index = pad_sequence(list(slots), batch_first=True).to(self.device)
        rows = torch.arange(len(slots), device=self.device)[:, None]
        # [B, K, H, D] after indexing by rows and slots; the cache's order is [B, H, K, D].
        keys = self.keys[rows, :, index].transpose(1, 2)
        return keys, self.values[rows, :, index].transpose(1, 2)

    def copied(self, row: int, slots: slice) -> LayerStates:
        return self.keys[row, :, slots].clone(), self.values[row, :, slots].clone()

    def put(self, row: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Write states ``[H, n, D]`` of one row."""
        end = start + keys.shape[1]
        if end > self.cache.capacity:
            self.enlarge(end)
        if not self.is_initialized or self.buffers.capacity < self.cache.capacity:
            self.lazy_initialization(keys[None], values[None])
        rows = self.rows()
        rows.keys[row, :, start:end] = keys
        rows.values[row, :, start:end] = values

    def widen(self, capacity: int) -> None:
        """Give an initialized layer room for at least `capacity` tokens per row."""
        buffers = self.buffers
        assert buffers.keys is not None
        assert buffers.values is not None
        rows = self.cache.first_row + len(self.cache.lengths)
        buffers.reserve(rows, capacity, buffers.keys, buffers.values)

    def enlarge(self, end: int) -> None:
        cache = self.cache
        if not cache.grows:
            raise RuntimeError(
                f"the cache holds {cache.capacity} tokens a row; {end} were asked of it"
            )
        if cache.step:
            cache.capacity = -(-end // cache.step) * cache.step
        else:
            cache.capacity = max(end, int(GROWTH * cache.capacity))
        cache._whole = None  # so that the smaller buffers are freed

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that the next `update` returns."""
        return max(self.cache.lengths) + query_length, 0

    def get_seq_length(self) -> int:
        return max(self.cache.lengths)

    def get_max_length(self) -> int:
        return self.cache.capacity
