"""Readings: what is measured on the way through the target's prefill, for pruners and drafters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class ReadingSpec:
    """Which readings a prefill takes. Specifications are united with ``|``.

    Args:
        attention: attention scores of the visual tokens, summed over layers, heads and text tokens,
            and the same layer by layer.
        hidden_layers: layers behind which the hidden states are kept; 0 means the embeddings that
            enter the first layer.
    """

    attention: bool = False
    hidden_layers: tuple[int, ...] = ()

    def __or__(self, other: ReadingSpec) -> ReadingSpec:
        layers = sorted({*self.hidden_layers, *other.hidden_layers})
        return ReadingSpec(self.attention or other.attention, tuple(layers))

    def __bool__(self) -> bool:
        return self.attention or bool(self.hidden_layers)


NO_READINGS = ReadingSpec()
ATTENTION = ReadingSpec(attention=True)


@dataclass(frozen=True)
class Readings:
    """The readings of one prefill.

    Args:
        attention: float32 ``[B, L]``, zero at text and padding; None unless requested.
        attention_by_layer: the same for each layer; empty unless requested.
        hidden_states: layer to hidden states ``[B, L, D]`` in the model's dtype; padding is
            meaningless.
    """

    attention: Tensor | None = None
    attention_by_layer: tuple[Tensor, ...] = ()
    hidden_states: Mapping[int, Tensor] = field(default_factory=dict)
