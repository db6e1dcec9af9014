"""What a drafting model reads: its own prompt, or the target's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.prefill_readings import KEYS, NO_FEATURES, FeatureSpec
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.drafting.text_inputs import text_inputs
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_reading import PromptReading


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
    """The target drafts for itself: the same weights go on from the target's own keys and values
    of the text and of the visual tokens that `pruning` keeps. SpecVLM's Self-SD reads the pruned
    prompt again; without that pass as many draft tokens are accepted."""

    may_wait = False  # slots of the target's cache move when rows leave

    def __init__(self, backbone: Backbone, pruning: Pruning) -> None:
        self.backbone = backbone
        self.pruning = pruning
        self.readings = pruning.pruner.readings | KEYS

    def lengths(self, prompt: Prompt) -> list[int]:
        return prompt.lengths

    def readable(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """The target has encoded the prompt."""

    def read(self, encoded: None, context: TargetContext) -> DraftPrompt:
        pruned = self.pruning.apply(context.prompt, context)
        kept_by_layer = [pruned.kept_tokens] * len(context.cache.stores)
        return DraftPrompt(
            pruned.prompt, lambda cache: append_slots(context.cache, cache, kept_by_layer)
        )


def prefilled(backbone: Backbone, prompt: Prompt, stores: bool = False) -> DraftPrompt:
    """A prompt that a model reads in a prefill of its own.

    Args:
        stores: keep the prompt for later turns (not for pruned prompts, which rarely recur).
    """
    named = prompt if stores else replace(prompt, namespace=None)
    return DraftPrompt(prompt, lambda cache: PromptReading(backbone, named, cache).read())


def append_slots(source: KVCache, target: KVCache, kept_by_layer: list[list[Tensor]]) -> None:
    """Append slots of a cache to another one of the same stores and rows: per store and row, int64
    ``[K]``; a row takes equally many in every store."""
    with torch.inference_mode():
        layer_states = source.taken(kept_by_layer)
        for layer, (keys, values) in zip(target.stores, layer_states, strict=True):
            layer.update(keys, values)
    target.advance([len(slots) for slots in kept_by_layer[0]])
