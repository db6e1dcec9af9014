"""What is measured during the target's prefill, for pruners and drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from draftlens.core.errors import ConfigError

TEXTS = ("all", "after")
"""Texts that visual tokens are compared with: all of the row, or that behind its first visual
token."""

ATTENTION_NAME = "attention of the target"


@dataclass(frozen=True, order=True)
class Similarity:
    """One reading of how similar visual tokens are to the text (ParallelVLM, equation 2).

    For visual token i it is S_i = sum over text tokens j of cos(V_i, X_j), with the target's hidden
    states V and X behind `layer` layers.

    Args:
        layer: 0 for the embeddings that enter the first layer. A model reads behind
            `layer_in` layers.
        text: `"all"` for all text tokens of the row, `"after"` for those behind its first visual
            token.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> Similarity(20).layer_in(num_layers=28)
        19
    """

    layer: int
    text: str = "all"

    def __post_init__(self) -> None:
        if not isinstance(self.layer, int) or isinstance(self.layer, bool) or self.layer < 0:
            raise ConfigError(f"layer is a whole number from 0 on, not {self.layer!r}")
        if self.text not in TEXTS:
            raise ConfigError(f"unknown text {self.text!r}; known: {', '.join(TEXTS)}")

    def layer_in(self, num_layers: int) -> int:
        """The layer that is read in a model of this depth, see `early_layer`."""
        return early_layer(self.layer, num_layers)


def early_layer(layer: int, num_layers: int) -> int:
    """A layer, but at most 0.7 of the depth (rounded down, at least 1), so that the rest of a
    prefill can hide what follows from the reading."""
    return min(layer, max(1, 7 * num_layers // 10))


@dataclass(frozen=True)
class Score:
    """What a pruner ranks visual tokens by, where that is not their attention over all layers.

    Args:
        name: in a few words, for pictures; begins with the name of the quantity.
        of: the score in some readings, float32 ``[B, L]``, higher is better; None if what it is
            computed from was not read.
    """

    name: str
    of: Callable[[PrefillFeatures], Tensor | None]


@dataclass(frozen=True)
class FeatureSpec:
    """Which readings a prefill takes. Specifications are united with ``|``.

    Args:
        attention: attention scores of the visual tokens, summed over layers, heads and text tokens,
            and the same layer by layer.
        hidden_layers: layers behind which the hidden states are kept; 0 means the embeddings that
            enter the first layer.
        similarities: how similar visual tokens are to the text.
        score: of the pruner that requests them; None for `PrefillFeatures.attention`. It concerns
            this pruner alone, so a union has none.
    """

    attention: bool = False
    hidden_layers: tuple[int, ...] = ()
    similarities: tuple[Similarity, ...] = ()
    score: Score | None = field(default=None, compare=False)

    def __or__(self, other: FeatureSpec) -> FeatureSpec:
        layers = sorted({*self.hidden_layers, *other.hidden_layers})
        similarities = sorted({*self.similarities, *other.similarities})
        return FeatureSpec(self.attention or other.attention, tuple(layers), tuple(similarities))

    def __bool__(self) -> bool:
        return self.attention or bool(self.hidden_layers) or bool(self.similarities)

    @property
    def score_name(self) -> str:
        """What `scores` are, in a few words."""
        return ATTENTION_NAME if self.score is None else self.score.name

    def scores(self, readings: PrefillFeatures) -> Tensor | None:
        """What the pruner that requests these readings ranks visual tokens by, float32 ``[B, L]``;
        None if it was not read."""
        if self.score is None:
            return readings.attention
        return self.score.of(readings)


NO_FEATURES = FeatureSpec()
ATTENTION = FeatureSpec(attention=True)


@dataclass(frozen=True)
class PrefillFeatures:
    """The readings of one prefill.

    Args:
        attention: float32 ``[B, L]``, zero at text and padding; None unless requested.
        attention_by_layer: the same for each layer; empty unless requested.
        hidden_states: layer to hidden states ``[B, L, D]`` in the model's dtype; padding is
            meaningless.
        similarities: float32 ``[B, L]`` of each that was requested, zero at text and padding.
    """

    attention: Tensor | None = None
    attention_by_layer: tuple[Tensor, ...] = ()
    hidden_states: Mapping[int, Tensor] = field(default_factory=dict)
    similarities: Mapping[Similarity, Tensor] = field(default_factory=dict)
