"""The model's own prefill: one causal pass over the whole prompt in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_reading import PromptReading
from draftlens.prefill.base import AtOnce, PrefillOutput
from draftlens.prefill.collector import FeatureCollector
from draftlens.prefill.reading import PrefillReading


@dataclass(frozen=True)
class FullPrefill(AtOnce):
    """One causal pass over the whole prompt; exact."""

    divides_prompts: ClassVar[bool] = True

    @property
    def approximate(self) -> tuple[str, ...]:
        return ()

    def check(self, backbone: Backbone) -> None: ...

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        return backbone.new_cache(prompt, room)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """`Prefill.run`; raises as `run_parts`."""
        (output,) = self.run_parts(backbone, reading, lambda: None)
        assert output is not None
        return output

    def run_parts(
        self, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        """`Prefill.run_parts`.

        Raises:
            UnsupportedModelError: the model passes nothing on to its attention, so attention scores
                cannot be read, or does not list its layers, so hidden states cannot.
            ConfigError: a layer of these hidden states does not exist.
        """
        prompt = reading.prompt
        num_layers = backbone.text_config.num_hidden_layers if reading.spec else 0
        collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
        probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
        # Hidden states are taken in one pass over the whole prompt.
        restores = not collector.layers
        part = PromptReading(backbone, prompt, reading.cache, probe, restores=restores)
        logits = None
        while logits is None:
            if collector.layers:
                alone = nullcontext() if probe is None else backbone.alone()
                with alone, backbone.watching(collector.layers, collector.receive):
                    logits = part.read()
            else:
                logits = part.read(size())
            if logits is None:
                yield None
        if probe is not None and len(probe.by_layer) != num_layers:
            raise UnsupportedModelError(
                f"{backbone.name} does not let its attention be read: prune without attention"
            )
        yield PrefillOutput(logits, collector.readings(probe), cached=part.cached)
