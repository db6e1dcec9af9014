"""Matrices of products in 8 or 4 bits, and checkpoints that are read into them matrix by matrix, so
that the model is never in memory in full ([quantization](../../docs/quantization.md))."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

AT_ONCE = 2**19
"""Values of a matrix that are computed at a time: a processor's cache holds them."""

VALUES = "v_proj"
"""Name of the layers whose outputs are the values of attention, where it is their only one."""

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
            in the lower half of each byte.
        scales: float32 ``[out, 1]``; with 4 bits ``[out, groups, 1]``.
        zeros: the integers that stand for 0 with 4 bits, uint8 ``[out, groups, 1]``.
    """

    integers: Tensor
    scales: Tensor
    zeros: Tensor | None = None

    @classmethod
    def of(cls, matrix: Tensor, bits: int) -> RoundedMatrix:
        """A matrix rounded to nearest. One whose inputs no group divides has 8 bits."""
        group = group_of([matrix.shape[1]])
        if bits == 8 or matrix.shape[1] % group:
            scales = matrix.abs().amax(1, keepdim=True).div(127).clamp_min(1e-12)
            return cls((matrix / scales).round_().to(torch.int8), scales)
        parts = matrix.reshape(len(matrix), -1, group)
        low = parts.amin(2, keepdim=True).clamp_max(0)
        high = parts.amax(2, keepdim=True).clamp_min(0)
        scales = (high - low).div_(15).clamp_min_(1e-12)
        zeros = (-low / scales).round_()
        integers = (parts / scales).round_().add_(zeros).clamp_(0, 15)
        halves = integers.to(torch.uint8).flatten(1)
        return cls(halves[:, ::2] | (halves[:, 1::2] << 4), scales, zeros.to(torch.uint8))

    @property
    def bits(self) -> int:
        return 8 if self.zeros is None else 4

    @property
    def shape(self) -> tuple[int, int]:
        outputs, width = self.integers.shape
        return outputs, width * 8 // self.bits

    def rows(self, rows: slice) -> RoundedMatrix:
        """A part of the outputs."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return RoundedMatrix(self.integers[rows], self.scales[rows], zeros)

    def values(self) -> Tensor:
        """The rounded matrix in float32."""
        if self.zeros is None:
            return self.integers.float().mul_(self.scales)
        halves = torch.stack([self.integers & 15, self.integers >> 4], 2)
        groups = halves.view(len(halves), self.scales.shape[1], -1).float()
        return groups.sub_(self.zeros).mul_(self.scales).flatten(1)

    def tensors(self) -> list[Tensor]:
        parts = (self.integers, self.scales, self.zeros)
        return [each for each in parts if each is not None]


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
        self.zeros: Tensor | None
        for name in ("integers", "scales", "zeros"):
            self.register_buffer(name, None)

    def round(self, matrix: Tensor) -> None:
        """Take the values of a matrix ``[out, in]``."""
        rounded = RoundedMatrix.of(matrix.float(), self.bits)
        self.integers, self.scales, self.zeros = rounded.integers, rounded.scales, rounded.zeros
        self.weight = None

    @property
    def matrix(self) -> RoundedMatrix:
        if self.integers is None or self.scales is None:
            raise UnsupportedModelError(
                "the rounded weights of the model are those of other passes now; load it again"
            )
        return RoundedMatrix(self.integers, self.scales, self.zeros)

    def forward(self, states: Tensor) -> Tensor:
        if self.weight is not None:
            return functional.linear(states, self.weight, self.bias)
        matrix = self.matrix
        return _product(states, self, lambda rows: matrix.rows(rows).values())


class RoundedPixelLinear(RoundedLinear):
    """One that reads pixels. Its products are computed by those passes alone that round activations
    (`passes.pixel_products`), which know it by `weight`: infinite anywhere, without memory."""

    def round(self, matrix: Tensor) -> None:
        super().round(matrix)
        nothing = torch.full((1, 1), torch.inf).expand(self.out_features, self.in_features)
        self.weight = nn.Parameter(nothing, requires_grad=False)
        self.weight._is_hf_initialized = True  # or transformers would write random values


@contextmanager
def without_values(model: nn.Module) -> Iterator[None]:
    """Let rounded layers compute with a float32 parameter `weight` of any values inside the block:
    for traces, which only need to find it, and for the shapes of what a model computes. Its bytes
    are never written and take no memory."""
    layers = _text_layers(model)
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


def release(model: nn.Module) -> list[Tensor]:
    """Take from the rounded layers of the language model what they hold; they can compute nothing
    afterwards."""
    taken = []
    for layer in _text_layers(model):
        taken += layer.matrix.tensors()
        layer.integers = layer.scales = layer.zeros = None
    return taken


def _text_layers(model: nn.Module) -> list[RoundedLinear]:
    """The rounded layers of the language model."""
    return [each for each in model.modules() if type(each) is RoundedLinear]


def is_released(model: nn.Module) -> bool:
    return any(layer.integers is None for layer in _text_layers(model))


def layer_bits(model: Any, bits: int) -> dict[str, int]:
    """Bits of the matrices that are rounded, by the names of their layers. The output head has 8
    bits, and so have, with 4 bits, those of `_sensitive`."""
    head = model.get_output_embeddings()
    inside = {id(module) for module in (*model.get_decoder().modules(), head)}
    layers = {
        name: module
        for name, module in model.named_modules()
        if id(module) in inside and isinstance(module, nn.Linear)
    }
    decoder = {name: module for name, module in layers.items() if module is not head}
    kept = {name for name in layers if name not in decoder} | _sensitive(decoder)
    return {name: 8 if name in kept else bits for name in layers}


def pixel_layers(model: Any) -> list[str]:
    """Names of the linear layers outside of the language model: of the vision tower and what joins
    it to the language model. Those with fewer inputs than a group are left out."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    inside = {id(module) for module in (*decoder.modules(), head)}
    return [
        name
        for name, module in model.named_modules()
        if id(module) not in inside
        and type(module) in (nn.Linear, RoundedPixelLinear)
        and module.in_features >= GROUPS[-1]
    ]


def _sensitive(layers: Mapping[str, nn.Linear]) -> set[str]:
    """Layers whose rounding to 4 bits moves logits most, for the bytes that 8 bits cost: those of
    values, and others that have less than half as many outputs as inputs. Of large ones (the last
    products of feed-forward blocks) the first and the last eighth are taken, and each third of
    those between."""
    largest = max((layer.weight.numel() for layer in layers.values()), default=0)
    by_role: dict[str, list[str]] = {}
    for name, layer in layers.items():
        role = name.rpartition(".")[2]
        if role == VALUES or 2 * layer.out_features < layer.in_features:
            by_role.setdefault(role, []).append(name)
    found: set[str] = set()
    for role, names in by_role.items():
        if role == VALUES or 2 * layers[names[0]].weight.numel() < largest:
            found.update(names)
            continue
        ends = max(1, len(names) // 8)
        middle = names[ends : len(names) - ends]
        found.update(names[:ends], middle[2::3], names[len(names) - ends :])
    return found


@contextmanager
def rounding_layers(model: Any, bits: int | None) -> Iterator[None]:
    """Let linear layers, in the decoder and at the output, compute with the values of
    `RoundedMatrix` inside the block; with None bits they stay. Layers that are rounded already do
    so anyway."""
    used = {} if bits is None else layer_bits(model, bits)
    layers = {name: model.get_submodule(name) for name in used}
    for name, layer in layers.items():
        layer.forward = partial(_rounded_product, layer, used[name])
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward


def _rounded_product(layer: nn.Linear, bits: int, states: Tensor) -> Tensor:
    return _product(states, layer, lambda rows: RoundedMatrix.of(layer.weight[rows], bits).values())


def _product(
    states: Tensor, layer: nn.Linear | RoundedLinear, values: Callable[[slice], Tensor]
) -> Tensor:
    """What a layer computes with a matrix of which `values` gives some rows in float32."""
    size = max(1, AT_ONCE // layer.in_features)
    parts = [
        functional.linear(states, values(slice(start, start + size)))
        for start in range(0, layer.out_features, size)
    ]
    outputs = torch.cat(parts, -1)
    return outputs if layer.bias is None else outputs.add_(layer.bias)


@torch.no_grad()
def with_rounded_weights(model: Any, bits: int) -> Any:
    """A copy of a model whose linear layers, in the decoder and at the output, have the values of
    `RoundedMatrix`. Embeddings that share a matrix with the output keep theirs."""
    rounded = deepcopy(model)
    head = rounded.get_output_embeddings()
    if isinstance(head, nn.Linear):
        head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
    for name, used in layer_bits(rounded, bits).items():
        weight = rounded.get_submodule(name).weight
        weight.copy_(RoundedMatrix.of(weight, used).values())
    return rounded


class RoundedWeights(QuantizationConfigMixin):  # type: ignore[misc]
    """A `quantization_config` with which transformers reads the matrices of a language model into
    `RoundedLinear`, one after the other. An output layer that shares its matrix with the embeddings
    stays as it is.

    Args:
        bits: 8 or 4.
        has_pixels: whether the layers that read pixels are rounded to 8 bits, too.
    """

    def __init__(self, bits: int = 8, has_pixels: bool = False) -> None:
        self.quant_method = METHOD
        self.bits = bits
        self.has_pixels = has_pixels


register_quantization_config(METHOD)(RoundedWeights)


@register_quantizer(METHOD)
class RoundingQuantizer(HfQuantizer):  # type: ignore[misc]
    """What transformers asks while it reads a checkpoint with `RoundedWeights`."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        config = self.quantization_config
        tied = {name.rpartition(".")[0] for name in model.all_tied_weights_keys}
        kinds = [(RoundedLinear, layer_bits(model, config.bits))]
        if config.has_pixels:
            kinds.append((RoundedPixelLinear, dict.fromkeys(pixel_layers(model), 8)))
        for kind, layers in kinds:
            for name, bits in layers.items():
                module = model.get_submodule(name)
                if type(module) is nn.Linear and name not in tied:
                    with torch.device("meta"):
                        model.set_submodule(name, kind(module, bits))

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
