"""A pass that reads a cache and returns what belongs into it, for engines that cannot write the
buffers of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.models.attention.dispatch import ARGUMENT, dispatching
from draftlens.models.cache_argument import with_cache


class SplitPass(nn.Module):
    """Decoder layers and output head of a model, as tensors to tensors.

    The attention of a layer has two parts, over the cached tokens and over the new ones, under one
    softmax: the cache is read where it is and never copied.

    Args:
        model: of transformers; its own modules are called.
        num_layers: layers of its cache.
        divisor: of the logits (`Backbone.divisor`).
    """

    def __init__(self, model: Any, num_layers: int, divisor: float) -> None:
        super().__init__()
        self.decoder = model.get_decoder()
        self.head = model.get_output_embeddings()
        self.num_layers = num_layers
        self.divisor = divisor

    def forward(
        self,
        embeds: Tensor,
        position_ids: Tensor,
        visible: Tensor,
        readers: Tensor,
        *cached: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits after some tokens, ``[N, V]``, and the new keys and values of each layer,
        ``[B, H, T, D]``.

        Args:
            embeds: ``[B, T, D]``.
            position_ids: int64 ``[..., B, T]``.
            visible: bool ``[B, 1, T, K + T]``, which of the K cached and the T new tokens each new
                token attends to.
            readers: int64 ``[N]``, the tokens that logits follow, counted through all rows.
            cached: keys of each layer, then values of each layer, ``[B, H, K, D]``.
        """
        keys = cached[: self.num_layers]
        values = cached[self.num_layers :]
        layers = [_NewStates(visible.shape[-1]) for _ in keys]
        attention = _SplitAttention(keys, values)
        with dispatching(self.decoder):
            output = self.decoder(
                inputs_embeds=embeds,
                attention_mask=visible,
                position_ids=position_ids,
                use_cache=True,
                **{ARGUMENT: attention},
                **with_cache(Cache(layers=layers)),
            )
        logits = self.head(output.last_hidden_state.flatten(0, 1).index_select(0, readers))
        if self.divisor != 1:
            logits = logits / self.divisor
        new_keys = [layer.keys for layer in layers]
        new_values = [layer.values for layer in layers]
        return (logits, *new_keys, *new_values)


class _NewStates(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a cache that hands the new states to the attention and keeps them."""

    is_compileable = True

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """There is nothing to reserve."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep ``[B, H, T, D]`` and return them."""
        self.keys = key_states
        self.values = value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what the mask covers."""
        return self.reach, 0

    def get_seq_length(self) -> int:
        """Cached tokens."""
        return self.reach

    def get_max_length(self) -> int:
        """Tokens that can be read."""
        return self.reach


class _SplitAttention:
    """An `AttentionPass` over cached and new tokens; layers call it in their order."""

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self._cached = iter(zip(keys, values, strict=True))

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
        """See `AttentionPass`; `mask` is `visible`."""
        assert mask is not None
        cached_keys, cached_values = next(self._cached)
        rows, heads, width, size = query.shape
        groups = key.shape[1]
        # The queries of a group lie one after the other, so that its keys are read once.
        grouped = (rows, groups, heads // groups * width)
        queries = (query * (scaling or size**-0.5)).reshape(*grouped, size)
        scores = [queries @ states.transpose(2, 3) for states in (cached_keys, key)]
        both = torch.cat(scores, -1).reshape(rows, heads, width, -1)
        both = both.masked_fill(~mask, torch.finfo(both.dtype).min)
        weights = both.softmax(-1).reshape(*grouped, -1)
        reach = cached_keys.shape[2]
        output = weights[..., :reach] @ cached_values + weights[..., reach:] @ value
        return output.reshape(rows, heads, width, -1).transpose(1, 2).contiguous(), None
