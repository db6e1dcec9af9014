"""The model's own prefill: one causal pass over the whole prompt in one process."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import OneProcess, PrefillOutput
from draftlens.prefill.collector import FeatureCollector
from draftlens.prefill.reading import PrefillReading


@dataclass(frozen=True)
class FullPrefill(OneProcess):
    """One causal pass over the whole prompt; exact."""

    @property
    def approximate(self) -> tuple[str, ...]:
        return ()

    def check(self, backbone: Backbone) -> None: ...

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        return backbone.new_cache(prompt, room)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """`Prefill.run`.

        Raises:
            UnsupportedModelError: the model passes nothing on to its attention, so attention scores
                cannot be read, or does not list its layers, so hidden states cannot.
            ConfigError: a layer of these hidden states does not exist.
        """
        prompt = reading.prompt
        cache = reading.cache
        if not reading.spec:
            logits = backbone.prefill(prompt, cache)
            return PrefillOutput(logits, PrefillFeatures())
        num_layers = backbone.text_config.num_hidden_layers
        collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
        if not reading.spec.attention:
            with backbone.watching(collector.layers, collector.receive):
                logits = backbone.prefill(prompt, cache)
            return PrefillOutput(logits, collector.readings())
        probe = AttentionProbe(prompt.visual, prompt.lengths)
        with backbone.alone(), backbone.watching(collector.layers, collector.receive):
            logits = backbone.prefill(prompt, cache, probe)
        if len(probe.by_layer) != num_layers:
            raise UnsupportedModelError(
                f"{backbone.name} does not let its attention be read: prune without attention"
            )
        return PrefillOutput(logits, collector.readings(probe))
