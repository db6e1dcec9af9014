"""Buffers of keys and values, shared by the layers of a block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LAYERS_PER_BLOCK = 8
"""Layers whose buffers are one tensor, so that accepted draft tokens of all of them move in one
operation. While full buffers grow, the old and the new ones of so many layers are in memory."""


class LayerBlock:
    """Keys and values of some layers, each one tensor ``[layers, B, H, capacity, D]``.

    Args:
        num_layers: how many.
    """

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self.keys_by_layer: Sequence[Tensor] = ()
        self.values_by_layer: Sequence[Tensor] = ()
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def fits(self, keys: Tensor, values: Tensor) -> bool:
        """Whether states ``[B, H, T, D]`` can lie in these tensors."""
        if self._keys is None or self._values is None:
            return True
        return _alike(self._keys, keys) and _alike(self._values, values)

    def reserve(self, rows: int, capacity: int, keys: Tensor, values: Tensor) -> None:
        self._keys = _reserved(self._keys, self.num_layers, rows, capacity, keys)
        self._values = _reserved(self._values, self.num_layers, rows, capacity, values)
        if not self.keys_by_layer or self.keys_by_layer[0].shape != self._keys.shape[1:]:
            self.keys_by_layer = self._keys.unbind()
            self.values_by_layer = self._values.unbind()

    def move(self, rows: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Copy slots within rows, in all layers; each argument is int64 ``[M]``.

        Returns:
            The arguments on the device of the block, for the next block, which mostly lies there.
        """
        if self._keys is None or self._values is None:
            return rows, source, target
        device = self._keys.device
        rows, source, target = rows.to(device), source.to(device), target.to(device)
        for states in (self._keys, self._values):
            states[:, rows, :, target] = states[:, rows, :, source]
        return rows, source, target


def _alike(stacked: Tensor, states: Tensor) -> bool:
    """Whether states ``[B, H, T, D]`` have heads, width, dtype and device of a block's tensor."""
    of_block = (stacked.shape[2], stacked.shape[4], stacked.dtype, stacked.device)
    return of_block == (states.shape[1], states.shape[3], states.dtype, states.device)


class LayerBuffers:
    """Keys and values of one layer for all rows, spare rows included.

    Args:
        block: in which they lie.
        index: the layer's place there.
    """

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
        """Tokens that a row can hold."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, rows: int, capacity: int, keys: Tensor, values: Tensor) -> None:
        """Make room for some rows of some capacity, in all layers of the block.

        Args:
            rows, capacity: least number of rows, and of tokens in each.
            keys, values: states ``[B, H, T, D]`` that name device, dtype, heads and widths.
        """
        if not self.block.fits(keys, values):
            self.block = LayerBlock(1)
            self.index = 0
        self.block.reserve(rows, capacity, keys, values)
        self.is_reserved = True

    @torch.inference_mode()  # as the passes that write the buffers
    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row over another."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[target, :, :length] = buffer[source, :, :length]


def make_buffers(num_layers: int, layers_per_block: int) -> list[LayerBuffers]:
    """Buffers of all layers, so many in each block."""
    buffers: list[LayerBuffers] = []
    for first in range(0, num_layers, layers_per_block):
        size = min(layers_per_block, num_layers - first)
        block = LayerBlock(size)
        buffers += [LayerBuffers(block, index) for index in range(size)]
    return buffers


def _reserved(
    buffer: Tensor | None, num_layers: int, rows: int, capacity: int, states: Tensor
) -> Tensor:
    """A buffer ``[layers, B, H, capacity, D]`` of at least this size with the same contents; zeros,
    since 0 x NaN is NaN."""
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
