"""A cache whose sliding layers hold little more than their windows.

Slot s of a row is place ``s - firsts[row]`` in the buffers of sliding layers, so these hold the
slots from `WindowedCache.firsts` on. Before a pass that their capacity does not hold, each row
drops what no pass needs any more and what is left moves to the front; there is room for a quarter
of a window, so that this is rare. A prompt's pass reads all its keys and stores the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.core.sequence import replace_by_last
from draftlens.models.kv_cache import (
    GROWTH,
    KVCache,
    LayerBuffers,
    LayerStates,
    _Layer,
    make_buffers,
)

SPARE = 16
"""Slots beyond the window, at least; a quarter of the window if that is more."""


class WindowedCache(KVCache):
    """A `KVCache` whose sliding layers drop the slots that are out of their windows.

    Rows may be rolled back as far as to their last `keep`, or their prompt before the first; to any
    tokens from the floor on that `reach` was given. A pass after a row was rolled back further
    raises `RuntimeError`. Tokens that were not given a window, such as views of a prompt that share
    a row, attention scores and draft prompts of the target's keys, need the cache `whole`.

    Args:
        window: how many tokens a token of a sliding layer attends to, itself included.
        slides: by layer, whether it slides.
        layers_per_block: as for `KVCache`.

    Attributes:
        firsts: of each row, the first slot that sliding layers hold.
        reserved: slots of a row for which sliding layers have buffers.
    """

    def __init__(
        self,
        window: int,
        slides: Sequence[bool],
        rows: int,
        capacity: int,
        layers_per_block: int,
    ) -> None:
        super().__init__(0, rows, capacity, grows=True)
        slides = tuple(slides)
        full = iter(make_buffers(slides.count(False), layers_per_block))
        sliding = iter(make_buffers(slides.count(True), layers_per_block))
        self.layers = [
            _SlidingLayer(self, next(sliding)) if each else _Layer(self, next(full))
            for each in slides
        ]
        self._window = window
        self._spare = max(window // 4, SPARE)
        self._layers_per_block = layers_per_block
        self.firsts = [0] * rows
        self.reserved = min(capacity, window + self._spare)
        self._floors = [0] * rows  # no row is rolled back further
        self.counts: Sequence[int] | None = None  # of the last pass, see `begin_pass`
        self.collects = False
        self.next_firsts: list[int] | None = None  # after a pass that stores its last tokens only

    @property
    def starts(self) -> list[int]:
        return [length - first for length, first in zip(self.lengths, self.firsts, strict=True)]

    @property
    def _sliding(self) -> list[_SlidingLayer]:
        return [layer for layer in self.layers if isinstance(layer, _SlidingLayer)]

    def whole(self) -> KVCache:
        slides = [isinstance(layer, _SlidingLayer) for layer in self.layers]
        rows = len(self.lengths)
        cache = KVCache(len(slides), rows, self.capacity, True, self._layers_per_block)
        for layer, each in zip(cache.layers, slides, strict=True):
            layer.buffers.slides = each
        return cache

    def whole_buffers(self, end: int) -> None:
        """No pass but one of the modules knows the first slots of the rows."""

    def first_needed(self, length: int) -> int:
        return max(length + 1 - self._window, 0)

    def begin_pass(self, width: int, counts: Sequence[int] | None = None) -> None:
        if self.next_firsts is not None and any(self.lengths):
            raise RuntimeError("a pass over a part of a prompt was cut short: read it from anew")
        self.next_firsts = None
        if self.counts is not None:
            self._floors = list(self.lengths)
        self.counts = counts
        self.firsts = [
            first if length else 0 for first, length in zip(self.firsts, self.lengths, strict=True)
        ]
        for row, (first, length) in enumerate(zip(self.firsts, self.lengths, strict=True)):
            if self.first_needed(length) < first:
                raise RuntimeError(
                    f"row {row} was rolled back to {length} tokens, whose window is not kept any "
                    "more"
                )
        end = max(self.starts) + width
        if end <= self.reserved:
            return
        most = self._window + self._spare
        if counts is None:
            self._drop()
            self.reserve(max(self.starts) + width, most + width)
        elif end <= most:
            self.reserve(end, most)
        else:
            self.reserve(most, most)
            self.next_firsts = [
                max(first, length + count - self._kept)
                for first, length, count in zip(self.firsts, self.lengths, counts, strict=True)
            ]

    def collect(self, collects: bool) -> None:
        self.collects = collects
        for layer in self._sliding:
            layer.collected.clear()

    @property
    def _kept(self) -> int:
        """Tokens of a prompt that stay: another one with the same beginning may end before it."""
        return self._window + self._spare // 2

    def reserve(self, end: int, most: int | None = None) -> None:
        """Let `reserved` be at least `end`; while it is below `most` it grows by `GROWTH`."""
        most = self._window + self._spare if most is None else most
        if end > most:
            self.reserved = max(self.reserved, most + int(GROWTH * (end - most)))
        elif end > self.reserved:
            self.reserved = max(end, min(int(GROWTH * self.reserved), most))

    @torch.inference_mode()  # as the passes that write the buffers
    def _drop(self) -> None:
        """Move what later passes may read to the front of the buffers."""
        blocks = dict.fromkeys(layer.buffers.block for layer in self._sliding)
        for row, (length, floor) in enumerate(zip(self.lengths, self._floors, strict=True)):
            first = self.first_needed(min(length, floor))
            places = slice(first - self.firsts[row], length - self.firsts[row])
            if places.start > 0:
                for block in blocks:
                    block.move_to_front(self.first_row + row, places)
                self.firsts[row] = first

    def advance(self, counts: int | Sequence[int]) -> None:
        super().advance(counts)
        self._end_pass()

    def truncate(self, lengths: Sequence[int]) -> None:
        super().truncate(lengths)
        self._end_pass()

    def _end_pass(self) -> None:
        if self.next_firsts is not None:
            self.firsts, self.next_firsts = self.next_firsts, None

    def reach(self, row: int, length: int, floor: int | None = None) -> int:
        if floor is not None:
            self._floors[row] = max(self._floors[row], floor)
        return length

    def keep(self, base: Sequence[int], slots: Sequence[Sequence[int]]) -> None:
        super().keep(base, slots)
        self._floors = list(self.lengths)

    @torch.inference_mode()
    def _move(self, places: Tensor) -> None:
        rows, source, target = places
        first = torch.tensor(self.firsts)[rows]
        sliding = dict.fromkeys(layer.buffers.block for layer in self._sliding)
        for block in dict.fromkeys(layer.buffers.block for layer in self.layers):
            shift = first if block in sliding else 0
            block.move(torch.stack([rows + self.first_row, source - shift, target - shift]))

    def cut(self, mask: Tensor) -> Tensor:
        """The columns of a mask ``[B, 1, T, K]`` of all slots that sliding layers read: those from
        the first slot of each row on."""
        width = max(self.starts) + mask.shape[-1] - max(self.lengths)
        first = self.firsts[0]
        if min(self.firsts) == max(self.firsts):
            return mask[..., first : first + width].contiguous()
        missing = max(max(self.firsts) + width - mask.shape[-1], 0)
        padded = torch.nn.functional.pad(mask, (0, missing))
        columns = torch.tensor(self.firsts)[:, None] + torch.arange(width)
        index = columns[:, None, None].to(mask.device, non_blocking=True)
        return padded.gather(-1, index.expand(-1, *mask.shape[1:3], -1))

    def _empty_rows(self, count: int) -> KVCache:
        rows = WindowedCache(self._window, (), count, self.capacity, self._layers_per_block)
        rows.reserved = self.reserved
        return rows

    @torch.inference_mode()
    def copied(self, rows: KVCache) -> KVCache:
        copy = self.new_rows(len(rows.lengths))
        for row, length in enumerate(rows.lengths):
            copy.put(row, 0, rows.states(row, 0, length), length)
        copy.lengths, copy.held = list(rows.lengths), list(rows.held)
        return copy

    def join(self, rows: KVCache) -> None:
        assert isinstance(rows, WindowedCache)
        super().join(rows)
        self.firsts = [*self.firsts, *rows.firsts]
        self._floors = [*self._floors, *rows.lengths]
        self.reserved = max(self.reserved, rows.reserved)

    def remove(self, row: int) -> None:
        super().remove(row)
        replace_by_last(self.firsts, row)
        replace_by_last(self._floors, row)

    @torch.inference_mode()  # as the passes that write the buffers
    def put(self, row: int, start: int, states: Sequence[LayerStates], count: int) -> None:
        """See `KVCache.put`. Of sliding layers the last tokens are written."""
        end = start + count
        before = self.firsts[row] if start else 0
        first = max(before, end - self._kept)
        for layer, (keys, _) in zip(self.layers, states, strict=True):
            if isinstance(layer, _SlidingLayer) and keys.shape[1] < count:
                first = max(first, end - keys.shape[1])
        for layer, (keys, values) in zip(self.layers, states, strict=True):
            keys, values = keys[:, :count], values[:, :count]
            if isinstance(layer, _SlidingLayer):
                layer.put_last(row, slice(before, start), slice(first, end), keys, values)
            else:
                layer.put(row, start, keys, values)
        self.firsts[row] = first


@dataclass(frozen=True)
class _Part:
    """Keys and values ``[B, H, T, D]`` of a part of the prompts; of each row the first slot and the
    number of tokens."""

    starts: Sequence[int]
    counts: Sequence[int]
    keys: Tensor
    values: Tensor

    def states(self, row: int, slots: slice) -> LayerStates:
        """Views of those of a row that are in `slots`."""
        start = self.starts[row]
        end = min(slots.stop - start, self.counts[row])
        places = slice(max(slots.start - start, 0), end)
        return self.keys[row, :, places], self.values[row, :, places]


class _SlidingLayer(_Layer):
    """One sliding layer; the first slots of the rows are the cache's."""

    cache: WindowedCache

    def __init__(self, cache: KVCache, buffers: LayerBuffers) -> None:
        super().__init__(cache, buffers)
        self.collected: list[_Part] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """See `_Layer.update`."""
        cache = self.cache
        if cache.collects and cache.counts is not None:
            self.collected.append(
                _Part(list(cache.lengths), list(cache.counts), key_states, value_states)
            )
        if cache.next_firsts is not None:
            self._allocate(0, key_states, value_states)
            rows = self.rows()
            keys = self._read_through(rows.keys, key_states)
            return keys, self._read_through(rows.values, value_states)
        starts = cache.starts
        end = max(starts) + key_states.shape[2]
        if end > self.buffers.capacity or not self.is_initialized:
            self._allocate(end, key_states, value_states)
        rows = self.rows()
        cache.write(rows.keys, key_states, starts)
        cache.write(rows.values, value_states, starts)
        return rows.keys[:, :, cache.first_seen : end], rows.values[:, :, cache.first_seen : end]

    def _read_through(self, buffer: Tensor, states: Tensor) -> Tensor:
        """The slots of a pass over a prompt, of which the last ones are stored."""
        cache = self.cache
        assert cache.next_firsts is not None
        longest = max(cache.starts)
        read = torch.cat([buffer[:, :, :longest], states], 2) if longest else states
        if min(cache.starts) < longest:
            cache.write(read, states, cache.starts)
        for row, (first, next_first) in enumerate(
            zip(cache.firsts, cache.next_firsts, strict=True)
        ):
            stored = read[row, :, next_first - first :][:, : buffer.shape[2]]
            buffer[row, :, : stored.shape[1]] = stored
        return read[:, :, cache.first_seen :]

    def _allocate(self, end: int, keys: Tensor, values: Tensor) -> None:
        cache = self.cache
        cache.reserve(end)
        if self.is_initialized and self.buffers.capacity >= cache.reserved:
            return
        self.dtype, self.device = keys.dtype, keys.device
        rows = cache.first_row + len(cache.lengths)
        self.buffers.reserve(rows, cache.reserved, keys, values)
        self.is_initialized = True

    def taken(self, slots: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        places = [each - first for each, first in zip(slots, self.cache.firsts, strict=True)]
        if any(len(each) and int(each.min()) < 0 for each in places):
            raise RuntimeError("sliding layers have dropped slots that are taken")
        return super().taken(places)

    def copied(self, row: int, slots: slice) -> LayerStates:
        if parts := [part for part in self.collected if part.starts[row] < slots.stop]:
            keys, values = zip(*(part.states(row, slots) for part in parts), strict=True)
            return torch.cat(keys, 1), torch.cat(values, 1)
        first = self.cache.firsts[row]
        return super().copied(row, slice(max(slots.start - first, 0), max(slots.stop - first, 0)))

    def put_last(self, row: int, held: slice, slots: slice, keys: Tensor, values: Tensor) -> None:
        """Hold `slots` of a row: the last ones of states ``[H, n, D]``, and those of `held` that
        are before them."""
        count = slots.stop - slots.start
        self._allocate(count, keys[None], values[None])
        rows = self.rows()
        for buffer, states in ((rows.keys[row], keys), (rows.values[row], values)):
            whole = torch.cat([buffer[:, : held.stop - held.start], states], 1)
            buffer[:, :count] = whole[:, whole.shape[1] - count :]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return max(self.cache.starts) + query_length, max(self.cache.firsts)
