"""Which library multiplies matrices in the passes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.models.model_state import Slot
from draftlens.models.onednn_linear import MANY, LargeProducts, few_rows, has_large
from draftlens.models.onednn_many_rows import ManyRows, many_rows
from draftlens.models.pixel_split import PIXELS
from draftlens.models.prompt import Prompt

_LARGE_PRODUCTS = Slot[LargeProducts]("products with large matrices")
_MANY_ROWS = Slot[ManyRows]("products of many rows")

PATCH = 3 * 14 * 14
"""Values of a patch of a picture in most vision towers."""


class ModelProducts:
    """The contexts in which the modules of a model run, by the number of rows that they read
    (`models.onednn_linear`, `models.onednn_many_rows`).

    Attributes:
        has_large: whether the decoder or the head has matrices that are multiplied apart where
            there are few rows.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, head: nn.Module, device: torch.device):
        self._model = model
        self._is_on_cpu = device.type == "cpu"
        self.has_large = has_large([decoder, head])
        self._num_text_weights = _num_weights(decoder)
        self._num_other_weights = _num_weights(model) - self._num_text_weights

    def of_tokens(self, tokens: Tensor) -> AbstractContextManager[Any]:
        """Where the decoder reads `tokens` ``[B, T]``."""
        if tokens.numel() > MANY:
            return self._many_rows(tokens.numel(), self._num_text_weights)
        if not self.has_large:
            return nullcontext()
        return few_rows(tokens, _LARGE_PRODUCTS.get_or_make(self._model, LargeProducts))

    def of_prompt(self, prompt: Prompt) -> AbstractContextManager[Any]:
        """Where the decoder reads a prompt or a part of one."""
        batch, length = prompt.embeds.shape[:2]
        return self._many_rows(batch * length, self._num_text_weights)

    def of_pixels(self, inputs: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Where the vision tower reads the pixels of a processor's output."""
        return self._many_rows(_num_patches(inputs), self._num_other_weights)

    def _many_rows(self, rows: int, num_weights: int) -> AbstractContextManager[Any]:
        if not self._is_on_cpu:
            return nullcontext()
        return many_rows(rows * num_weights, lambda: _MANY_ROWS.get_or_make(self._model, ManyRows))


def _num_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _num_patches(inputs: Mapping[str, Any]) -> int:
    """About how many patches of pictures and clips there are."""
    pixels = (inputs[name] for name in PIXELS if isinstance(inputs.get(name), Tensor))
    return sum(map(Tensor.numel, pixels)) // PATCH
