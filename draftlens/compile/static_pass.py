"""A decode forward as a function of tensors alone, which can be exported and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.models.attention.dispatch import dispatching
from draftlens.models.cache_argument import with_cache


class StaticPass(nn.Module):
    """Embeddings, decoder layers and head over buffers of keys and values, as `Backbone.forward`
    with tensors (or sizes of tensors) in place of its numbers (lengths, capacity)."""

    def __init__(self, decoder: Any, head: Any, embed: Any, divisor: float) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head
        self.embed = embed
        self.divisor = divisor

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        visible: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> Tensor:
        """Write keys and values of new tokens and return the logits after them, ``[B, T, V]``.

        Args:
            tokens: int64 ``[B, T]``.
            position_ids: int64 ``[..., B, T]``.
            slots: where each token is written, int64 ``[B, T]``.
            visible: bool ``[B, 1, T, K]``, which of the first K slots each token attends to.
            keys, values: of each layer, ``[B, H, capacity, D]``, with a capacity of at least K.
        """
        reach = visible.shape[-1]
        layers = [
            _Slots(layer_keys, layer_values, slots, reach)
            for layer_keys, layer_values in zip(keys, values, strict=True)
        ]
        with dispatching(self.decoder):  # so that grouped queries cost no copies of the keys
            output = self.decoder(
                inputs_embeds=self.embed(tokens),
                attention_mask=visible,
                position_ids=position_ids,
                use_cache=True,
                **with_cache(Cache(layers=layers)),
            )
        logits: Tensor = self.head(output.last_hidden_state)
        if self.divisor != 1:
            logits = logits / self.divisor
        return logits


class _Slots(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a cache that is written at given slots."""

    is_compileable = True

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, reach: int) -> None:
        super().__init__()
        self.keys = keys
        self.values = values
        self.slots = slots
        self.reach = reach
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[B, H, T, D]``; return the first slots, as views."""
        rows = torch.arange(self.slots.shape[0], device=self.slots.device)[:, None]
        self.keys[rows, :, self.slots] = key_states.transpose(1, 2)
        self.values[rows, :, self.slots] = value_states.transpose(1, 2)
        return self.keys[:, :, : self.reach], self.values[:, :, : self.reach]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.reach, 0

    def get_seq_length(self) -> int:
        """Slots before the new tokens, if all rows are equally long."""
        return self.reach - self.slots.shape[1]

    def get_max_length(self) -> int:
        return self.reach
