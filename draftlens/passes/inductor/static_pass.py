"""A decode forward as a function of tensors alone, which can be exported and compiled, and the few
kinds of passes that are compiled, so that all are there after a short while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.models.attention.dispatch import dispatching
from draftlens.models.products import FEW
from draftlens.models.support import with_cache
from draftlens.passes.structure import Skeleton
from draftlens.processes.shared_model import ModelParts

ANY = 0
"""In place of a size: any number from 2 on."""


@dataclass(frozen=True, order=True)
class PassShape:
    """A kind of pass.

    The numbers of cached tokens and of reserved tokens are variables of the compiled code, and so
    are rows and tokens from 2 on: a pass over one token of one row, which is most of plain decoding
    and of drafting, has simpler code.

    Args:
        rows: 1, or `ANY`.
        width: new tokens of each row: 1, or `ANY`.
        axes: sizes of the leading dimensions of the positions: empty, or the axes of M-RoPE.
        is_few: whether all rows together have two or three tokens, in a model of which such passes
            have code of their own (`models.products`).
    """

    rows: int
    width: int
    axes: tuple[int, ...] = ()
    is_few: bool = False

    @classmethod
    def of(cls, position_ids: Tensor, few_apart: bool = False) -> PassShape:
        """The kind of a pass with positions int64 ``[..., B, T]``; `few_apart`: passes of two and
        three tokens have code of their own."""
        *axes, rows, width = position_ids.shape
        is_few = few_apart and 1 < rows * width <= FEW
        return cls(_kind(rows), _kind(width), tuple(axes), is_few)

    @property
    def is_single(self) -> bool:
        return (self.rows, self.width) == (1, 1)

    @property
    def name(self) -> str:
        """Such as ``1x1`` or ``1xN``, for files and for the user."""
        text = f"{_letter(self.rows)}x{_letter(self.width)}"
        if self.is_few:
            text += "-few"
        if self.axes:
            text += "-axes" + "x".join(map(str, self.axes))
        return text


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


def pass_of(model: Any, divisor: float) -> StaticPass:
    decoder = model.get_decoder()
    head = model.get_output_embeddings()
    embed = model.get_input_embeddings()
    return StaticPass(decoder, head, embed, divisor).eval()


def pass_without_weights(skeleton: Skeleton) -> StaticPass:
    """The pass of a model of this structure. Its weights have no values, and take no memory until
    they are written or read.

    Raises:
        ValueError: the class builds another structure from the configuration, so the model was
            changed after it was made, as quantization and adapters do.
    """
    made: dict[str, Tensor] = {}
    for name, facts in skeleton.tensors.items():
        made[name] = made[facts.owner] if facts.owner in made else facts.made()
    model = ModelParts(skeleton.architecture, skeleton.config, None, made).build()
    return pass_of(model, skeleton.divisor)


def _kind(size: int) -> int:
    return 1 if size == 1 else ANY


def _letter(size: int) -> str:
    return "N" if size == ANY else str(size)
