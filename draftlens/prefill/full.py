"""The model's own prefill: one causal pass over the whole prompt on one host."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import Readings
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import OneProcess, PrefillOutput
from draftlens.prefill.collector import ReadingCollector
from draftlens.prefill.reading import Reading


@dataclass(frozen=True)
class FullPrefill(OneProcess):
    """One causal pass over the whole prompt. It is exact."""

    @property
    def approximate(self) -> tuple[str, ...]:
        """Nothing differs."""
        return ()

    def check(self, backbone: Backbone) -> None:
        """Every model reads its own prompts."""

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        return backbone.new_cache(prompt, room)

    def run(self, backbone: Backbone, reading: Reading) -> PrefillOutput:
        """See `Prefill.run`.

        Raises:
            UnsupportedModelError: the model passes nothing on to its attention, so attention scores
                cannot be read, or does not list its layers, so hidden states cannot.
            ConfigError: there is no layer of these hidden states.
        """
        prompt = reading.prompt
        cache = reading.cache
        if not reading.spec:
            logits = backbone.prefill(prompt, cache)
            return PrefillOutput(logits, Readings())
        num_layers = backbone.text_config.num_hidden_layers
        collector = ReadingCollector(reading.spec, prompt, num_layers, reading.early)
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
