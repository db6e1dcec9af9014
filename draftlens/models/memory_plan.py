"""How much memory models take, computed from their configurations without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.layer_kinds import LayerKinds

PROCESS_BYTES = 2**30
"""A process that has imported torch and transformers, before it loads a model; measured
(``benchmarks/results/compiled_memory.md``)."""

PRECISIONS = {"float32": 4.0, "bfloat16": 2.0, "8bit": 1.0, "4bit": 0.5 + 4 / 64}
"""Bytes of a weight. `8bit` and `4bit` are those of bitsandbytes, for the linear layers of a model
in bfloat16: the embeddings and the head stay. 64 weights in 4 bits share a scale of 4 bytes."""


@dataclass(frozen=True)
class ModelMemory:
    """Numbers of elements of a model.

    Args:
        parameters: all weights; tied ones count once.
        linear: of these, weights of linear layers, without the head.
        text: of `parameters`, those of the language model and the head, without the embeddings of
            its tokens: what an engine of passes has a copy of.
        per_token: elements of keys and values of a token, in layers that keep all tokens.
        per_token_windowed: the same in layers that keep a window.
        window: tokens of the window; 0 without such layers.
    """

    parameters: int
    linear: int
    text: int
    per_token: int
    per_token_windowed: int = 0
    window: int = 0

    @classmethod
    def of(cls, config: Any) -> ModelMemory:
        """Of a configuration of transformers.

        Raises:
            UnsupportedModelError: no class of transformers generates text with it.
        """
        model = _meta_model(config)
        text_config = config.get_text_config(decoder=True)
        kinds = LayerKinds.of(text_config)
        decoder = model.get_decoder()
        sizes = [_keys_and_values(layer, text_config) for layer in decoder.layers]
        kept = list(zip(sizes, kinds.slides, strict=True))[: kinds.num_cached]
        if kinds.with_states:
            kept = [
                (0 if state else size, slides)
                for (size, slides), state in zip(kept, kinds.with_states, strict=False)
            ]
        head = model.get_output_embeddings()
        return cls(
            _count(model),
            sum(
                module.weight.numel()
                for module in model.modules()
                if isinstance(module, nn.Linear) and module is not head
            ),
            _count(decoder) - _count(model.get_input_embeddings()) + _count(head),
            sum(size for size, slides in kept if not slides),
            sum(size for size, slides in kept if slides),
            kinds.window,
        )

    def weights(self, precision: str) -> float:
        """Bytes of the weights in one of `PRECISIONS`."""
        each = PRECISIONS[precision]
        if each >= PRECISIONS["bfloat16"]:
            return self.parameters * each
        return (self.parameters - self.linear) * PRECISIONS["bfloat16"] + self.linear * each

    def keys(self, tokens: int, element_bytes: int) -> int:
        """Bytes of the keys and values of a row with this many tokens."""
        windowed = min(tokens, self.window + self.window // 4)
        elements = self.per_token * tokens + self.per_token_windowed * windowed
        return elements * element_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of a target and its draft in one precision, in bytes.

    Args:
        target, draft: what the models take; None without a draft.
        precision: of both, a key of `PRECISIONS`.
        has_copy: whether an engine of passes keeps a copy of the language model: float32 on a CPU,
            with 8-bit weights for the draft.
    """

    target: ModelMemory
    draft: ModelMemory | None
    precision: str
    has_copy: bool = False

    @property
    def element_bytes(self) -> int:
        return 4 if self.precision == "float32" else 2

    @property
    def weights(self) -> float:
        return self.target.weights(self.precision)

    @property
    def draft_weights(self) -> float:
        return 0.0 if self.draft is None else self.draft.weights(self.precision)

    @property
    def copies(self) -> float:
        """Of the language models, for passes that the modules do not compute."""
        if not self.has_copy:
            return 0.0
        return 4.0 * self.target.text + (0.0 if self.draft is None else 1.0 * self.draft.text)

    @property
    def fixed(self) -> float:
        """All but keys and values, and activations."""
        return PROCESS_BYTES + self.weights + self.draft_weights + self.copies

    def keys(self, tokens: int) -> int:
        """Of a row of the target and of the draft."""
        models = (self.target,) if self.draft is None else (self.target, self.draft)
        return sum(model.keys(tokens, self.element_bytes) for model in models)

    def most_tokens(self, memory: float) -> int:
        """The largest number of tokens of a row whose keys fit into `memory` bytes; 0 if the models
        do not. The activations of the prompt are not counted."""
        room = memory - self.fixed
        low, high = 0, 1 << 24
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.keys(middle) <= room else (low, middle - 1)
        return low


def _meta_model(config: Any) -> Any:
    with torch.device("meta"):
        for kind in (AutoModelForImageTextToText, AutoModelForCausalLM):
            if type(config) in kind._model_mapping:
                return kind.from_config(config)
    raise UnsupportedModelError(f"no class of transformers generates text with {config.model_type}")


def _count(module: nn.Module) -> int:
    """Tied parameters count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _keys_and_values(layer: nn.Module, text_config: Any) -> int:
    """Elements of keys and values of a token in one layer."""
    found = [
        module.weight.shape[0]
        for name, module in layer.named_modules()
        if name.rpartition(".")[2] in ("k_proj", "v_proj") and isinstance(module, nn.Linear)
    ]
    if len(found) == 2:
        return sum(found)
    heads = text_config.num_attention_heads
    head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // heads
    return int(2 * (getattr(text_config, "num_key_value_heads", None) or heads) * head_dim)
