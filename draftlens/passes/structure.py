"""What engines that trace models share: the structure of a model without its weights, the folder of
what is made of it, and the check that a pass computes what the model does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.core import tree as trees
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.files import cache_folder, private_folder, write_json
from draftlens.models.adapter import Backbone
from draftlens.models.facts import facts_of
from draftlens.models.kv_cache import KVCache
from draftlens.models.products import is_large
from draftlens.models.prompt import Prompt
from draftlens.models.support import changing_frequencies
from draftlens.passes.base import MODULES, PASSES, beyond

Forward = Callable[[Tensor, Tensor, KVCache, Tensor | None], Tensor | None]
"""Computes the logits of a pass from tokens, positions, cache and mask, as `Passes.run` does."""

FORMAT = 2
"""Version of the code that is compiled; passes of another version are compiled again."""

SMALL = 8
"""Most elements of a tensor that compiled code may contain as numbers."""


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

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> LayerFacts:
        return cls(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)


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


def describe_passes(backbone: Backbone) -> dict[str, str]:
    """What each engine has prepared on this machine for a model, or why it has nothing."""
    facts = {}
    for name in PASSES:
        if name == MODULES:
            continue
        engine = PASSES[name]()
        try:
            reason = engine.missing or beyond(engine, backbone) or engine.refusal(backbone)
            facts[name] = f"never: {reason}" if reason else engine.ready(backbone)
        except OSError as error:
            facts[name] = f"never: {error}"
    return facts


def whole_cache(backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
    """An empty cache whose layers keep all tokens, as those of passes do."""
    return backbone.new_cache(prompt, room).whole()


def kept_by_layers(backbone: Backbone) -> tuple[LayerFacts, ...]:
    """What the decoder's layers keep; reads two tokens."""
    ids = torch.ones(1, 2, dtype=torch.long, device=backbone.device)
    prompt = backbone.text_prompt(ids)
    cache = whole_cache(backbone, prompt, room=1)
    backbone.prefill(prompt, cache)
    return tuple(LayerFacts.of(layer.keys, layer.values) for layer in cache.layers)


def folder_of(backbone: Backbone, skeleton: Skeleton) -> Path:
    """The folder of a model's passes, created on demand. Its name is a hash of everything that the
    compiled code depends on, which is also written into it.

    Raises:
        OSError: it cannot be made, or another user could put code there.
    """
    facts = _facts(backbone, skeleton)
    text = json.dumps(facts, sort_keys=True, default=str)
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = private_folder(private_folder(cache_folder() / "compiled") / name)
    if not (path / "facts.json").exists():
        write_json(path / "facts.json", json.loads(text))
    return path


def is_any_on_disk(pattern: str) -> bool:
    """Whether a folder of a model's passes has a file of this name. The folder of one model is not
    found without reading tokens with it."""
    return any((cache_folder() / "compiled").glob(f"*/{pattern}"))


def _facts(backbone: Backbone, skeleton: Skeleton) -> dict[str, Any]:
    tensors = {name: dataclasses.astuple(facts) for name, facts in skeleton.tensors.items()}
    return {
        **facts_of(backbone),
        "compiled": "",  # what computes forwards at the moment has no bearing
        "tensors": hashlib.sha256(json.dumps(tensors, default=str).encode()).hexdigest(),
        "layers": [dataclasses.astuple(layer) for layer in skeleton.layers],
        "divisor": skeleton.divisor,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "format": FORMAT,
    }


@cache
def _processor() -> str:
    """A hash of the processor's flags, which determine the code that the compiler makes."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:16]


def slots_of(lengths: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Where the next tokens of each row are written, int64 ``[B, T]``."""
    if len(lengths) == 1:
        return torch.arange(lengths[0], lengths[0] + width, device=device)[None]
    return torch.tensor(lengths, device=device)[:, None] + torch.arange(width, device=device)


@torch.inference_mode()
def check_pass(
    backbone: Backbone,
    forward: Forward,
    rows: int,
    width: int,
    axes: tuple[int, ...],
    bound: float | None = None,
) -> None:
    """Compare another way to compute a forward with the model's modules, on some tokens after a
    prompt of two. They are none of the first of the vocabulary, which are often special tokens, so
    that a prompt of them alone says nothing of a model: small differences grow large with it.

    Args:
        backbone: the model.
        forward: what is checked.
        rows, width: size of the pass.
        axes: leading sizes of its positions: empty, or the axes of M-RoPE.
        bound: of differences, relative to the largest logit; None for the dtype's rounding.

    Raises:
        UnsupportedModelError: their logits differ.
    """
    ids = torch.arange(rows * (2 + width), device=backbone.device).reshape(rows, -1)
    ids = (ids + backbone.vocab_size // 4) % backbone.vocab_size
    prompt = backbone.text_prompt(ids[:, :2])
    cache = whole_cache(backbone, prompt, room=width)
    backbone.prefill(prompt, cache)
    steps = torch.arange(width, device=backbone.device).expand(rows, -1)
    # Prompts may have further axes than texts, on which the positions of text are the same.
    positions = prompt.positions(steps).reshape(-1, rows, width)[0].expand(*axes, rows, width)
    causal = torch.ones(width, width, dtype=torch.bool, device=backbone.device).tril()
    mask = trees.attention_mask([2] * rows, causal)
    logits = forward(ids[:, 2:], positions, cache, mask)
    if logits is None:
        raise UnsupportedModelError("its cache has no buffers of all tokens")
    expected = backbone.forward_modules(ids[:, 2:], positions, cache, mask)
    if bound is None:
        bound = 1e-4 if expected.dtype == torch.float32 else 5e-2
    difference = float((logits - expected).abs().max())
    if not difference <= bound * float(expected.abs().max().clamp_min(1e-6)):
        raise UnsupportedModelError(
            f"its logits differ from those of the model by {difference:.3g}"
        )


def tracing_refusal(backbone: Backbone) -> str | None:
    """Why passes of a model cannot be traced, as far as this is known beforehand."""
    if backbone.plain_only:
        return str(backbone.plain_only)
    if backbone.chains_only:
        return "some of its layers keep states instead of keys and values"
    if backbone.attention != "sdpa":
        return f"it runs {backbone.attention} attention; load it with sdpa"
    if backbone.indexers is not None:
        return "its layers select the tokens that they attend to"
    if backbone.is_spread:
        return "accelerate moves its weights or inputs between devices"
    if _has_quantized_weights(backbone):
        return "its weights are quantized"
    kind = changing_frequencies(backbone.text_config)
    if kind:
        return f"the frequencies of its {kind} rotary positions change with the length"
    if any(_has_hooks(module) for module in backbone.decoder.modules()):
        return "its modules have hooks, which compiled code would not call"
    return None


def _has_quantized_weights(backbone: Backbone) -> bool:
    """False also for weights that were quantized on disk only, such as those of a GGUF file."""
    if getattr(backbone.model.config, "quantization_config", None) is None:
        return False
    modules = (backbone.decoder, backbone.head)
    tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    return any(
        type(each.data) is not torch.Tensor
        or not each.is_floating_point()
        or each.element_size() == 1
        for each in tensors
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def weight_bytes(backbone: Backbone) -> int:
    model = backbone.model  # whose rounded weights are buffers
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def position_axes(backbone: Backbone) -> tuple[int, ...]:
    """Leading dimensions of the model's positions: empty, or the axes of M-RoPE."""
    ids = torch.ones(1, 2, dtype=torch.long, device=backbone.device)
    return tuple(backbone.text_prompt(ids).position_ids.shape[:-2])
