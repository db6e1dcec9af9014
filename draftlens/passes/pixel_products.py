"""Products of the layers that read pixels, with 8-bit weights and activations: most of what a
picture costs on a CPU ([quantization](../../docs/quantization.md#vision-tower))."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.locks import ForkLock
from draftlens.models.products import LinearBy
from draftlens.models.rounded_weights import RoundedMatrix, RoundedPixelLinear, pixel_layers

Product = Callable[[Tensor], Tensor]
"""From rows ``[n, in]`` to ``[n, out]``, with the bias."""

MakeProduct = Callable[[RoundedMatrix, Tensor | None], Product]
"""The product with a matrix ``[out, in]`` and a bias ``[out]`` or None. It runs alone."""

BOUND = 0.1
"""Largest difference, relative to the norm, of products from those of unrounded activations. More
is a mistake with random activations, and with others a layer in which large values cancel out."""

CHECKED = 4
"""Rows of a layer that are compared, random ones and the first of a picture."""

_log = logging.getLogger("draftlens")


class PixelProducts:
    """Products of linear layers outside of the language model, of integers. Each is compiled when
    it is first used, and computed in float32 from the rounded weights if rounded activations would
    differ too much on the first picture.

    Args:
        model: in float32 on the CPU. Its layers keep their weights, unless they were read as
            `RoundedPixelLinear`.
        make: compiles a product.
    """

    def __init__(self, model: Any, make: MakeProduct) -> None:
        self._make = make
        layers = {name: model.get_submodule(name) for name in pixel_layers(model)}
        self._layers = {id(layer.weight): (name, layer) for name, layer in layers.items()}
        self._made: dict[int, Product] = {}
        self._lock = ForkLock()

    def computing(self) -> LinearBy:
        """A context in which these products are computed here."""
        return LinearBy(self._product, self._fits)

    def _fits(self, states: Tensor, weight: Tensor) -> bool:
        return id(weight) in self._layers

    def _product(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = states.reshape(-1, states.shape[-1]).float().contiguous()
        with self._lock:
            product = self._made.get(id(weight))
            if product is None:
                product = self._made[id(weight)] = self._compiled(weight, bias, rows[:CHECKED])
            outputs = product(rows)
        return outputs.to(states.dtype).view(*states.shape[:-1], len(weight))

    def _compiled(self, weight: Tensor, bias: Tensor | None, rows: Tensor) -> Product:
        """The product of a layer, whose first rows are given."""
        name, layer = self._layers[id(weight)]
        is_rounded = isinstance(layer, RoundedPixelLinear)
        matrix = layer.matrix if is_rounded else RoundedMatrix.of(weight.float(), 8)
        product = self._make(matrix, bias)
        values = matrix.values()

        def in_float32(states: Tensor) -> Tensor:
            return functional.linear(states, values, bias)

        random = torch.randn(CHECKED, matrix.shape[1], generator=torch.Generator().manual_seed(0))
        if _distance(product(random), in_float32(random)) > BOUND:
            raise UnsupportedModelError(
                f"8-bit products of {name} are wrong on this processor; take another quantization, "
                "or none"
            )
        distance = _distance(product(rows), in_float32(rows))
        if distance <= BOUND:
            return product
        _log.info("activations of %s stay float32: 8 bits differ by %.0f%%", name, 100 * distance)
        return in_float32


def _distance(outputs: Tensor, expected: Tensor) -> float:
    """Relative to the norm; infinite if it is no number."""
    distance = float(torch.dist(outputs, expected) / expected.norm().clamp(min=1e-30))
    return distance if distance < float("inf") else float("inf")
