"""The recurrent and convolution states of one layer, for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from draftlens.models.kv_cache import LayerBuffers

Values = tuple[Tensor | None, ...]
"""The convolution states and the recurrent states of a layer, each ``[B, ...]``; None for those
that it does not have, or has not made yet."""


class StateLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """The states of one decoder layer. Tensors are replaced and never changed, but for the
    convolution states, which kernels for one token change in place."""

    is_initialized = False

    def __init__(self, num_states: int, buffers: LayerBuffers) -> None:
        super().__init__(num_states)
        self.buffers = buffers  # without keys and values

    def of_rows(self, cache: object) -> StateLayer:
        """The layer of other rows, which have no states yet."""
        return StateLayer(self.number_of_states, self.buffers)

    @property
    def values(self) -> Values:
        return (*self.conv_states.values(), *self.recurrent_states.values())

    @values.setter
    def values(self, values: Values) -> None:
        for index in range(self.number_of_states):
            self.conv_states[index] = values[index]
            self.recurrent_states[index] = values[self.number_of_states + index]
            self.has_previous_state[index] = values[index] is not None

    @property
    def nbytes(self) -> int:
        return num_bytes(self.values)

    def before_pass(self, width: int) -> Values:
        """The states before a pass over `width` tokens, which does not change these tensors."""
        values = self.values
        if width == 1:
            for index, states in self.conv_states.items():
                self.conv_states[index] = None if states is None else states.clone()
        return values

    def put(self, rows: Sequence[int], values: Values, num_rows: int) -> None:
        """Set the states of some of all rows."""
        if list(rows) == list(range(num_rows)):
            self.values = values
            return
        self.values = tuple(
            _replaced(states, rows, new, num_rows)
            for states, new in zip(self.values, values, strict=True)
        )

    def append(self, values: Values, before: int, count: int) -> None:
        """Add the states of further rows to those of the rows before."""
        self.values = tuple(_widened(states, count) for states in self.values)
        self.put(range(before, before + count), values, before + count)

    def taken(self, slots: Sequence[Tensor]) -> tuple[Values, None]:
        """For `KVCache.taken`: the states in place of keys, of all tokens."""
        return self.values, None

    def update(self, values: Values, _: None) -> None:
        """Set what `taken` returned."""
        self.values = values

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing is allocated before there are states."""

    def update_conv_state(
        self,
        conv_states: Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Append inputs of the convolution ``[B, D, T]``; returns what it reads."""
        present = self.conv_states[state_idx]
        if present is not None:
            size = present.shape[-1]
            read = torch.cat([present, conv_states], -1)
        else:
            size = conv_kernel_size or conv_states.shape[-1]
            missing = max(size - conv_states.shape[-1], 0)
            read = torch.nn.functional.pad(conv_states, (missing, 0))
        self.conv_states[state_idx] = read[..., -size:].clone()
        self.has_previous_state[state_idx] = True
        return read

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


def num_bytes(values: Values) -> int:
    return sum(states.nbytes for states in values if states is not None)


def rows_of(values: Values, rows: Sequence[int]) -> Values:
    """The states of some rows."""
    return tuple(
        states
        if states is None or list(rows) == list(range(len(states)))
        else states.index_select(0, index_of(rows, states))
        for states in values
    )


def index_of(rows: Sequence[int], states: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.long, device=states.device)


def _replaced(
    states: Tensor | None, rows: Sequence[int], new: Tensor | None, num_rows: int
) -> Tensor | None:
    """States with other ones for some rows; zeros, which mean no tokens, where there are none."""
    if new is None:
        return None if states is None else states.index_fill(0, index_of(rows, states), 0)
    if states is None:
        states = new.new_zeros(num_rows, *new.shape[1:])
    return states.index_copy(0, index_of(rows, states), new)


def _widened(states: Tensor | None, count: int) -> Tensor | None:
    """States with zeros for further rows."""
    if states is None:
        return None
    return torch.cat([states, states.new_zeros(count, *states.shape[1:])])
