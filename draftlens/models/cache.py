"""The key-value cache: preallocated, one length per row, and a rollback that costs nothing.

It is written at a position, as in gpt-fast: what lies beyond a row's length is garbage that the
next pass overwrites. So forgetting rejected guesses is setting a number, and rows of a batch may
accept different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from draftlens.core.errors import UnsupportedModelError


class KVCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` over buffers ``[B, H, capacity, D]``, allocated at the first forward
    of each layer.

    One pass is: the model calls `update` once per layer (all write behind the same lengths), then
    the caller says how many of the new tokens count, with `advance`, and after verification which
    of them stay, with `keep`.

    Args:
        num_layers: decoder layers.
        rows: B.
        capacity: most tokens a row will ever hold, guesses included.
    """

    def __init__(self, num_layers: int, rows: int, capacity: int) -> None:
        self.lengths = [0] * rows
        self.capacity = capacity
        super().__init__(layers=[_Layer(self) for _ in range(num_layers)])

    @property
    def uniform(self) -> bool:
        """Whether all rows are equally long, so that reads are views and writes are slices."""
        return min(self.lengths) == max(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes allocated so far for keys and values."""
        return sum(
            layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer.is_initialized
        )

    def advance(self, counts: int | Sequence[int]) -> None:
        """Count the first `counts` tokens of the last pass (per row, or the same for all) as
        held."""
        steps = [counts] * len(self.lengths) if isinstance(counts, int) else counts
        self.lengths = [length + step for length, step in zip(self.lengths, steps, strict=True)]

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget everything beyond these lengths, one per row."""
        self.lengths = list(lengths)

    def keep(self, base: Sequence[int], slots: Sequence[Sequence[int]]) -> None:
        """Of what lies behind `base`, keep these slots, in order, close up, and forget the rest.

        Args:
            base: per row, how many leading tokens stay where they are.
            slots: per row, strictly increasing offsets behind `base`: the accepted path of a tree.
        """
        if any(list(kept) != list(range(len(kept))) for kept in slots):
            longest = max(map(len, slots))
            # Shorter rows copy later slots onto themselves.
            sources = [[*kept, *range(len(kept), longest)] for kept in slots]
            source = torch.tensor(
                [[n + slot for slot in row] for n, row in zip(base, sources, strict=True)]
            )
            target = torch.tensor([[n + slot for slot in range(longest)] for n in base])
            for layer in self.layers:
                layer.move(source, target)
        self.lengths = [n + len(kept) for n, kept in zip(base, slots, strict=True)]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one decoder layer; the lengths are the cache's."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate on the device and in the dtype in which this layer computes; zeros, since 0 x
        NaN is NaN."""
        self.dtype, self.device = key_states.dtype, key_states.device
        rows, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, self.cache.capacity, width)
        self.values = value_states.new_zeros(
            rows, heads, self.cache.capacity, value_states.shape[-1]
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[B, H, T, D]`` behind each row's length; return everything up to the longest
        row's end, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new, lengths = key_states.shape[2], self.cache.lengths
        end = max(lengths) + new
        if end > self.cache.capacity:
            raise RuntimeError(
                f"the cache holds {self.cache.capacity} tokens a row; {end} were asked of it"
            )
        if self.cache.uniform:
            self.keys[:, :, end - new : end] = key_states
            self.values[:, :, end - new : end] = value_states
        else:
            at = torch.tensor(lengths, device=self.device)[:, None] + torch.arange(
                new, device=self.device
            )
            row = torch.arange(len(lengths), device=self.device)[:, None]
            self.keys[row, :, at] = key_states.transpose(1, 2)
            self.values[row, :, at] = value_states.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    @torch.inference_mode()  # as the passes that write the buffers
    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots within each row: int64 ``[B, K]`` absolute positions, from `source` to
        `target`."""
        source, target = source.to(self.device), target.to(self.device)
        row = torch.arange(source.shape[0], device=self.device)[:, None]
        self.keys[row, :, target] = self.keys[row, :, source]
        self.values[row, :, target] = self.values[row, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that the next `update` returns."""
        return max(self.cache.lengths) + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens held by the longest row."""
        return max(self.cache.lengths)

    def get_max_length(self) -> int:
        """Most tokens a row can hold."""
        return self.cache.capacity


def check_rollback(model_name: str, text_config: Any) -> None:
    """Refuse a model whose own cache keeps something that a rejected guess would spoil.

    Args:
        model_name: for the message.
        text_config: the configuration of the language model.

    Raises:
        UnsupportedModelError: a layer has a sliding window, linear attention or another state that
            cannot be rolled back, or attends to pictures apart from the text; names the kind of
            layer.
    """
    if getattr(text_config, "cross_attention_layers", None):
        raise UnsupportedModelError(
            f"{model_name} looks at pictures through layers of cross-attention; "
            "models whose pictures are tokens among those of the text work"
        )
    for layer in DynamicCache(config=text_config).layers:
        if type(layer) is not DynamicLayer:
            raise UnsupportedModelError(
                f"{model_name} keeps a {type(layer).__name__}, which cannot be rolled back when "
                f"a guess is rejected; "
                "models with full attention in every layer work"
            )
