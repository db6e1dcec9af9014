"""Matrices of products in 8 or 4 bits, and checkpoints that are read into them matrix by matrix, so
that the model is never in memory in full ([quantization](../../docs/quantization.md))."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizers_utils import get_module_from_name
from transformers.utils.quantization_config import QuantizationConfigMixin

from draftlens.core.errors import UnsupportedModelError

GROUPS = (128, 64, 32)
"""Sizes of groups, in inputs of a matrix: of activations that share a scale, and of 4-bit weights.
The larger, the faster is a pass."""

METHOD = "draftlens_rounded"
"""Name of the configuration in the registries of transformers."""


def group_of(inputs: Iterable[int]) -> int:
    """The largest of `GROUPS` that divides all numbers, else the smallest."""
    sizes = set(inputs)
    return next((size for size in GROUPS if not any(each % size for each in sizes)), GROUPS[-1])


@dataclass(frozen=True)
class RoundedMatrix:
    """A matrix ``[out, in]`` of integers times scales.

    Args:
        integers: int8 ``[out, in]``; or, with 4 bits, uint8 ``[out, in / 2]`` with the even inputs
            in the lower half of each byte, as two's complements.
        scales: float32 ``[out, 1]``; with 4 bits ``[out, groups, 1]``.
    """

    integers: Tensor
    scales: Tensor

    @classmethod
    def of(cls, matrix: Tensor, bits: int) -> RoundedMatrix:
        """A matrix rounded to nearest. One whose inputs no group divides has 8 bits."""
        group = group_of([matrix.shape[1]])
        if bits == 8 or matrix.shape[1] % group:
            scales = matrix.abs().amax(1, keepdim=True).div(127).clamp_min(1e-12)
            return cls((matrix / scales).round_().to(torch.int8), scales)
        parts = matrix.reshape(len(matrix), -1, group)
        scales = parts.abs().amax(2, keepdim=True).div(7).clamp_min(1e-12)
        halves = (parts / scales).round_().to(torch.int8).flatten(1).view(torch.uint8)
        return cls((halves[:, ::2] & 15) | (halves[:, 1::2] << 4), scales)

    @property
    def bits(self) -> int:
        return 8 if self.integers.dtype == torch.int8 else 4

    @property
    def shape(self) -> tuple[int, int]:
        outputs, width = self.integers.shape
        return outputs, width * 8 // self.bits

    def values(self) -> Tensor:
        """The rounded matrix in float32."""
        if self.bits == 8:
            return self.integers.float().mul_(self.scales)
        even = (self.integers << 4).view(torch.int8) >> 4
        odd = self.integers.view(torch.int8) >> 4
        groups = torch.stack([even, odd], 2).view(len(even), self.scales.shape[1], -1)
        return groups.float().mul_(self.scales).flatten(1)


class RoundedLinear(nn.Module):
    """A linear layer that keeps its matrix rounded, and computes with its float32 values.

    Args:
        layer: what it replaces; only its shape, bias and dtype are used.
        bits: 8 or 4.
    """

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__()
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.bits = bits
        self.weight: Any = layer.weight
        self.bias = layer.bias
        self.integers: Tensor | None
        self.scales: Tensor | None
        self.register_buffer("integers", None)
        self.register_buffer("scales", None)

    def round(self, matrix: Tensor) -> None:
        """Take the values of a matrix ``[out, in]``."""
        rounded = RoundedMatrix.of(matrix.float(), self.bits)
        self.integers, self.scales = rounded.integers, rounded.scales
        self.weight = None

    @property
    def matrix(self) -> RoundedMatrix:
        if self.integers is None or self.scales is None:
            raise UnsupportedModelError(
                "the rounded weights of the model are those of other passes now; load it again"
            )
        return RoundedMatrix(self.integers, self.scales)

    def forward(self, states: Tensor) -> Tensor:
        weight = self.matrix.values() if self.weight is None else self.weight
        return functional.linear(states, weight, self.bias)


@contextmanager
def without_values(model: nn.Module) -> Iterator[None]:
    """Let rounded layers compute with a float32 parameter `weight` of any values inside the block:
    for traces, which only need to find it, and for the shapes of what a model computes. Its bytes
    are never written and take no memory."""
    layers = [each for each in model.modules() if isinstance(each, RoundedLinear)]
    for layer in layers:
        empty = torch.empty(layer.out_features, layer.in_features)
        layer.weight = nn.Parameter(empty, requires_grad=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.weight = None


def rounded_layer(model: nn.Module, name: str) -> RoundedLinear | None:
    """The rounded layer whose `weight` has this name; None if there is none."""
    path, _, leaf = name.rpartition(".")
    module: Any = model.get_submodule(path)
    return module if isinstance(module, RoundedLinear) and leaf == "weight" else None


def release(model: nn.Module) -> None:
    """Free what rounded layers hold, which can compute nothing afterwards."""
    for layer in model.modules():
        if isinstance(layer, RoundedLinear):
            layer.integers = layer.scales = None


def is_released(model: nn.Module) -> bool:
    layers = (each for each in model.modules() if isinstance(each, RoundedLinear))
    return any(layer.integers is None for layer in layers)


@contextmanager
def rounding_layers(model: Any, bits: int | None) -> Iterator[None]:
    """Let linear layers, in the decoder and at the output, compute with the values of
    `RoundedMatrix` inside the block; with None bits they stay. Layers that are rounded already do
    so anyway."""
    layers = [] if bits is None else list(_linear_layers(model, bits))
    for layer, used in layers:
        layer.forward = partial(_rounded_product, layer, used)
    try:
        yield
    finally:
        for layer, _ in layers:
            del layer.forward


def _rounded_product(layer: nn.Linear, bits: int, states: Tensor) -> Tensor:
    return functional.linear(states, RoundedMatrix.of(layer.weight, bits).values(), layer.bias)


def _linear_layers(model: Any, bits: int) -> Iterator[tuple[Any, int]]:
    """The layers whose matrices passes round, each with the bits of its weights."""
    head = model.get_output_embeddings()
    for module in model.get_decoder().modules():
        if isinstance(module, nn.Linear) and module is not head:
            yield module, bits
    if isinstance(head, nn.Linear):
        yield head, 8


@torch.no_grad()
def with_rounded_weights(model: Any, bits: int) -> Any:
    """A copy of a model whose linear layers, in the decoder and at the output, have the values of
    `RoundedMatrix`. Embeddings that share a matrix with the output keep theirs; the output has 8
    bits."""
    rounded = deepcopy(model)
    head = rounded.get_output_embeddings()
    if isinstance(head, nn.Linear):
        head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
    for layer, used in _linear_layers(rounded, bits):
        layer.weight.copy_(RoundedMatrix.of(layer.weight, used).values())
    return rounded


class RoundedWeights(QuantizationConfigMixin):  # type: ignore[misc]
    """A `quantization_config` with which transformers reads the matrices of a language model into
    `RoundedLinear`, one after the other. An output layer that shares its matrix with the embeddings
    stays as it is.

    Args:
        bits: 8 or 4.
    """

    def __init__(self, bits: int = 8) -> None:
        self.quant_method = METHOD
        self.bits = bits


register_quantization_config(METHOD)(RoundedWeights)


@register_quantizer(METHOD)
class RoundingQuantizer(HfQuantizer):  # type: ignore[misc]
    """What transformers asks while it reads a checkpoint with `RoundedWeights`."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        tied = {name.rpartition(".")[0] for name in model.all_tied_weights_keys}
        head = model.get_output_embeddings()
        inside = {id(module) for module in (*model.get_decoder().modules(), head)}
        for name, module in list(model.named_modules()):
            if id(module) not in inside or type(module) is not nn.Linear or name in tied:
                continue
            bits = 8 if module is head else self.quantization_config.bits
            with torch.device("meta"):
                model.set_submodule(name, RoundedLinear(module, bits))

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        self.remove_quantization_config(model)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        module, name = get_module_from_name(model, param_name)
        return isinstance(module, RoundedLinear) and name == "weight"

    def get_quantize_ops(self) -> ConversionOps:
        return _Rounding()

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class _Rounding(ConversionOps):  # type: ignore[misc]
    """Gives matrices of the checkpoint to their layers."""

    def convert(
        self,
        input_dict: dict[str, Any],
        model: Any = None,
        missing_keys: Any = None,
        **_: Any,
    ) -> dict[str, Any]:
        others = {}
        for name, found in input_dict.items():
            layer, leaf = get_module_from_name(model, name)
            if not isinstance(layer, RoundedLinear) or leaf != "weight":
                others[name] = found
                continue
            layer.round(found[0] if isinstance(found, list) else found)
            layer._is_hf_initialized = True  # type: ignore[assignment]
            missing_keys.discard(name)
        return others
