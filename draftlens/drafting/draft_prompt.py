"""What a drafting model reads: its own prompt, or the target's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import ATTENTION, NO_FEATURES, FeatureSpec
from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.drafting.text_inputs import text_inputs
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_reading import PromptReading
from draftlens.pruning.attention import AttentionPruner

KV_SOURCES = ("prefill", "gather", "sparse")


@dataclass(frozen=True)
class DraftPrompt:
    """A prompt that a drafting model is about to read."""

    prompt: Prompt  # pruned if the method prunes
    # writes it into an empty cache; returns each row's last logits ``[B, 1, V]``, if computed
    fill: Callable[[KVCache], Tensor | None]


class PromptBuilder(Protocol):
    """Makes the prompts of a drafting model."""

    backbone: Backbone
    readings: FeatureSpec  # of the target's prefill that `read` needs
    may_wait: bool  # whether `read` may come rounds after the prefill

    def lengths(self, prompt: Prompt) -> list[int]:
        """About how many tokens of each row it reads, from the target's prompt."""
        ...

    def readable(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `encode` uses of the draft's inputs."""
        ...

    def encode(self, inputs: Mapping[str, Any]) -> Any: ...

    def read(self, encoded: Any, context: TargetContext) -> DraftPrompt:
        """The prompts of rows that join, from the result of `encode` for them."""
        ...


class DraftPromptBuilder:
    """A draft model with its own processor and vision encoder reads its own prompt: all visual
    tokens, or those that `pruning` keeps."""

    may_wait = True

    def __init__(self, backbone: Backbone, pruning: Pruning | None = None) -> None:
        self.backbone = backbone
        self.pruning = pruning
        self.readings = NO_FEATURES if pruning is None else pruning.pruner.readings

    def lengths(self, prompt: Prompt) -> list[int]:
        return prompt.lengths

    def readable(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return inputs

    def encode(self, inputs: Mapping[str, Any]) -> Prompt:
        return self.backbone.encode(self.backbone.prepare_prompt(self.readable(inputs)))

    def read(self, encoded: Prompt, context: TargetContext) -> DraftPrompt:
        prompt = replace(encoded, namespace=context.prompt.namespace)
        if self.pruning is None:
            return prefilled(self.backbone, prompt, stores=True)
        return prefilled(self.backbone, self.pruning.apply(prompt, context).prompt)


class TextPromptBuilder(DraftPromptBuilder):
    """A language model, which takes no pictures, reads the words of the prompt: its own inputs, or
    the target's without what `config`, the target's, names as pictures and clips."""

    def __init__(self, backbone: Backbone, config: Any) -> None:
        super().__init__(backbone)
        self._config = config

    def lengths(self, prompt: Prompt) -> list[int]:
        visual = prompt.visual.sum(1).tolist()
        return [
            max(length - num_visual, 1)
            for length, num_visual in zip(prompt.lengths, visual, strict=True)
        ]

    def readable(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return text_inputs(self._config, inputs)


class SelfPromptBuilder:
    """The target drafts for itself: the same weights read the target's prompt without most of its
    visual tokens (SpecVLM's Self-SD, and Sparse-to-Dense).

    Args:
        kv: the source of its keys and values: `prefill` reads the pruned prompt again (the paper:
            tokens then attend only to each other), `gather` takes those of the target's prefill (no
            second pass), `sparse` takes in each layer those that this layer's text attends to most
            (Sparse-to-Dense, with any pruner).

    Raises:
        ConfigError: `kv` is unknown.
    """

    may_wait = False  # slots of the target's cache move when rows leave

    def __init__(self, backbone: Backbone, pruning: Pruning, kv: str = "prefill") -> None:
        check_kv(kv)
        if kv == "sparse":
            pruning = replace(pruning, pruner=AttentionPruner())
        self.backbone = backbone
        self.pruning = pruning
        self.kv = kv
        self.readings = pruning.pruner.readings
        if kv == "sparse":
            self.readings = self.readings | ATTENTION

    def lengths(self, prompt: Prompt) -> list[int]:
        return prompt.lengths

    def readable(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """The target has encoded the prompt."""

    def read(self, encoded: None, context: TargetContext) -> DraftPrompt:
        pruned = self.pruning.apply(context.prompt, context)
        if self.kv == "prefill":
            return prefilled(self.backbone, pruned.prompt)
        num_layers = len(context.cache.layers)
        kept_by_layer = [pruned.kept_tokens] * num_layers
        if self.kv == "sparse":
            kept_by_layer = self._kept_by_layer(context)
        return DraftPrompt(
            pruned.prompt, lambda cache: append_slots(context.cache, cache, kept_by_layer)
        )

    def _kept_by_layer(self, context: TargetContext) -> list[list[Tensor]]:
        kept_by_layer = []
        with context.observer.phase("prune"):
            for scores in context.readings.attention_by_layer:
                readings = replace(context.readings, attention=scores)
                layer_context = replace(context, readings=readings)
                kept_by_layer.append(self.pruning.keep(context.prompt, layer_context))
        return kept_by_layer


def check_kv(kv: str) -> None:
    if kv not in KV_SOURCES:
        raise ConfigError(f"unknown kv {kv!r}; known: {', '.join(KV_SOURCES)}")


def prefilled(backbone: Backbone, prompt: Prompt, stores: bool = False) -> DraftPrompt:
    """A prompt that a model reads in a prefill of its own; `stores` where later turns may begin
    with it, which pruned prompts, chosen by the question, rarely do."""

    def fill(cache: KVCache) -> Tensor | None:
        return PromptReading(backbone, prompt, cache, restores=stores, stores=stores).read()

    return DraftPrompt(prompt, fill)


def append_slots(source: KVCache, target: KVCache, kept_by_layer: list[list[Tensor]]) -> None:
    """Append slots of a cache to another one of the same layers and rows: per layer and row, int64
    ``[K]``; a row takes equally many in every layer."""
    with torch.inference_mode():
        layer_states = source.taken(kept_by_layer)
        for layer, (keys, values) in zip(target.layers, layer_states, strict=True):
            layer.update(keys, values)
    target.advance([len(slots) for slots in kept_by_layer[0]])
