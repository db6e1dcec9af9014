"""A model without its weights, from which another process compiles its passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.compile.static_pass import StaticPass
from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.onednn_linear import is_large
from draftlens.processes.shared_model import ModelParts

SMALL = 8
"""Most elements of a tensor that inductor may write into its code as numbers."""


@dataclass(frozen=True)
class TensorFacts:
    """A tensor without its values, unless it has at most `SMALL` elements; `owner` is the name of
    the first tensor that is the same object."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    is_parameter: bool
    owner: str
    values: tuple[float, ...] | None

    @classmethod
    def of(cls, tensor: Tensor, owner: str) -> TensorFacts:
        return cls(
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            dtype=tensor.dtype,
            device=str(tensor.device),
            is_parameter=isinstance(tensor, nn.Parameter),
            owner=owner,
            values=tuple(tensor.flatten().tolist()) if tensor.numel() <= SMALL else None,
        )

    def made(self) -> Tensor:
        """A tensor like it. Unless it is small, its bytes are never touched and take no memory."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        if self.values is not None:
            tensor.copy_(torch.tensor(self.values).reshape(self.shape))
        return nn.Parameter(tensor, requires_grad=False) if self.is_parameter else tensor


@dataclass(frozen=True)
class LayerFacts:
    """The states that one decoder layer keeps."""

    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Skeleton:
    """The structure of a model, without the values of its tensors."""

    architecture: type
    config: Any
    tensors: Mapping[str, TensorFacts]
    divisor: float
    layers: tuple[LayerFacts, ...]
    device: str

    @classmethod
    def of(cls, backbone: Backbone) -> Skeleton:
        """The structure of a model; reads two tokens with it, to see what its cache holds."""
        model = backbone.model
        return cls(
            architecture=type(model),
            config=model.config,
            tensors=_facts_of_tensors(model),
            divisor=backbone.divisor,
            layers=kept_by_layers(backbone),
            device=str(backbone.device),
        )

    @property
    def has_large_matrices(self) -> bool:
        """Whether passes of more than a few tokens have products by oneDNN."""
        return any(
            is_large(facts.shape, facts.dtype, torch.device(facts.device))
            for facts in self.tensors.values()
        )

    def check(self, model: Any) -> None:
        """Raise `UnsupportedModelError` unless a model still has this structure."""
        if _facts_of_tensors(model) != self.tensors:
            raise UnsupportedModelError("the model's parameters have changed since")

    def has_small_tensors_of(self, model: Any) -> bool:
        """Whether a model's small tensors, possibly constants of the code, are these."""
        return all(
            TensorFacts.of(_tensor_of(model, name), facts.owner) == facts
            for name, facts in self.tensors.items()
            if facts.values is not None
        )

    def build(self) -> StaticPass:
        """The pass of a model of this structure. Its weights have no values, and take no memory
        until they are written or read.

        Raises:
            ValueError: the class builds another structure from the configuration, so the model was
                changed after it was made, as quantization and adapters do.
        """
        made: dict[str, Tensor] = {}
        for name, facts in self.tensors.items():
            made[name] = made[facts.owner] if facts.owner in made else facts.made()
        model = ModelParts(self.architecture, self.config, None, made).build()
        return pass_of(model, self.divisor)


def pass_of(model: Any, divisor: float) -> StaticPass:
    decoder = model.get_decoder()
    head = model.get_output_embeddings()
    embed = model.get_input_embeddings()
    return StaticPass(decoder, head, embed, divisor).eval()


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a module by name, tied ones under each of their names."""
    return dict(_tensors(module))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _tensor_of(model: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(path), leaf)
    return tensor


def _facts_of_tensors(model: nn.Module) -> dict[str, TensorFacts]:
    first: dict[int, str] = {}
    facts = {}
    for name, tensor in _tensors(model):
        facts[name] = TensorFacts.of(tensor, first.setdefault(id(tensor), name))
    return facts


def kept_by_layers(backbone: Backbone) -> tuple[LayerFacts, ...]:
    """What the decoder's layers keep; reads two tokens."""
    ids = torch.ones(1, 2, dtype=torch.long, device=backbone.device)
    prompt = backbone.text_prompt(ids)
    cache = backbone.new_cache(prompt, room=1)
    backbone.prefill(prompt, cache)
    return tuple(_facts_of(layer) for layer in _filled_layers(cache))


def _filled_layers(cache: KVCache) -> list[Any]:
    return list(cache.layers)


def _facts_of(layer: Any) -> LayerFacts:
    keys = layer.keys
    values = layer.values
    return LayerFacts(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
