"""The readings of one prefill that come from its hidden states, taken while it runs."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from draftlens.core.prefill_readings import FeatureSpec, PrefillFeatures, Similarity
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.attention.similarities import similarity
from draftlens.models.prompt import Prompt


class FeatureCollector:
    """Receives hidden states layer by layer and keeps only what was requested. `layers` are those
    that it needs, rising; 0 for the embeddings.

    Args:
        early: receives the readings as soon as all of them are taken, from inside the forward. It
            is not called if `spec` has attention, which needs the whole pass, or is empty.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        prompt: Prompt,
        num_layers: int,
        early: Callable[[PrefillFeatures], None] | None = None,
    ) -> None:
        self._spec = spec
        self._prompt = prompt
        self._similar_at = {entry: entry.layer_in(num_layers) for entry in spec.similarities}
        self._early = early
        self._hidden_states: dict[int, Tensor] = {}
        self._similarities: dict[Similarity, Tensor] = {}
        self.layers = sorted({*spec.hidden_layers, *self._similar_at.values()})

    def receive(self, layer: int, states: Tensor) -> None:
        """Take what is requested of the hidden states ``[B, L, D]`` after `layer` layers."""
        if layer in self._spec.hidden_layers:
            self._hidden_states[layer] = states
        for entry, place in self._similar_at.items():
            if place == layer:
                self._similarities[entry] = similarity(
                    states, self._prompt.visual, self._prompt.lengths, entry.text
                )
        if layer == self.layers[-1] and self._early is not None and not self._spec.attention:
            self._early(self.readings())

    def readings(self, probe: AttentionProbe | None = None) -> PrefillFeatures:
        """All readings, with the attention that a probe has read in the same pass."""
        attention = None if probe is None else probe.result()
        by_layer = () if probe is None else tuple(probe.by_layer)
        return PrefillFeatures(
            attention, by_layer, dict(self._hidden_states), dict(self._similarities)
        )
