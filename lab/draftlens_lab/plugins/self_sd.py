"""SpecVLM's Self-SD with other sources of keys and values, to measure what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.prefill_readings import ATTENTION
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import (
    DraftPrompt,
    PromptBuilder,
    SelfPromptBuilder,
    append_slots,
    prefilled,
)
from draftlens.drafting.pruning import Pruning
from draftlens.methods.specvlm.config import SpecVLM
from draftlens.models.adapter import Backbone
from draftlens.pruning.attention import AttentionPruner


class RereadPrompt(SelfPromptBuilder):
    """The target reads the pruned prompt again, so that tokens attend to each other only."""

    def read(self, encoded: None, context: TargetContext) -> DraftPrompt:
        return prefilled(self.backbone, self.pruning.apply(context.prompt, context).prompt)


class SparsePrompt(SelfPromptBuilder):
    """In each layer the keys and values of the visual tokens that this layer's text attends to
    most, whatever the pruner."""

    def __init__(self, backbone: Backbone, pruning: Pruning) -> None:
        kinds = backbone.kinds
        shares = kinds is not None and kinds.num_cached < backbone.text_config.num_hidden_layers
        if shares or backbone.states is not None:
            raise UnsupportedModelError(
                f"some layers of {backbone.name} have no keys and values of their own, which kv "
                "'sparse' takes in each layer: use 'prefill'"
            )
        super().__init__(backbone, replace(pruning, pruner=AttentionPruner()))
        self.readings = self.readings | ATTENTION

    def read(self, encoded: None, context: TargetContext) -> DraftPrompt:
        prompt = self.pruning.apply(context.prompt, context).prompt
        kept_by_layer = self._kept_by_layer(context)
        return DraftPrompt(prompt, lambda cache: append_slots(context.cache, cache, kept_by_layer))

    def _kept_by_layer(self, context: TargetContext) -> list[list[Tensor]]:
        kept_by_layer = []
        with context.observer.phase("prune"):
            for scores in context.readings.attention_by_layer:
                readings = replace(context.readings, attention=scores)
                layer_context = replace(context, readings=readings)
                kept_by_layer.append(self.pruning.keep(context.prompt, layer_context))
        return kept_by_layer


SOURCES = {"prefill": RereadPrompt, "sparse": SparsePrompt}


@dataclass(frozen=True)
class SelfSD(SpecVLM):
    """The target drafts for itself, as with `SpecVLM` and draft `"self"`.

    Args:
        num_speculative_tokens, tree, sampling_rule, prune_ratio, schedule, prefill: as for
            `SpecVLM`.
        pruner: as for `SpecVLM`, by default that of the paper.
        draft: `"self"`.
        kv: `"prefill"` reads the pruned prompt again (SpecVLM); `"sparse"` takes in each layer the
            keys and values with the most attention there (Sparse-to-Dense).

    Raises:
        ConfigError: a value makes no sense.
    """

    removed: ClassVar[Mapping[str, str]] = {}

    pruner: Any = "specvlm"
    draft: str = "self"
    kv: str = "prefill"

    def __post_init__(self) -> None:
        if self.kv not in SOURCES:
            raise ConfigError(f"unknown kv {self.kv!r}; known: {', '.join(SOURCES)}")
        if self.draft != "self":
            raise ConfigError(f"method 'self-sd' has draft 'self', not {self.draft!r}")
        if self.kv == "sparse" and self.schedule != "serial":
            raise ConfigError(
                "kv 'sparse' takes keys and values of the target's prefill, for which a draft that "
                f"runs ahead does not wait: use 'prefill' with schedule {self.schedule!r}"
            )
        super().__post_init__()

    def self_prompts(self, target: Backbone) -> PromptBuilder:
        return SOURCES[self.kv](target, self.pruning)
