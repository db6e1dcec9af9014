"""Features of the target's prefill, for pruners and drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from draftlens.core.errors import ConfigError

TEXTS = ("all", "after")
"""Text tokens that visual tokens are compared with: all, or those after the first visual token."""

ATTENTION_NAME = "attention of the target"


@dataclass(frozen=True, order=True)
class Similarity:
    """Similarity of visual tokens to the text (ParallelVLM, equation 2).

    For visual token i, S_i = sum over text tokens j of cos(V_i, X_j), with the target's hidden
    states V and X after layer `layer_in` (0: the embeddings). `text` is one of `TEXTS`.

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
        return early_layer(self.layer, num_layers)


def early_layer(layer: int, num_layers: int) -> int:
    """`layer`, but at most 0.7 of the depth (rounded down, at least 1), so that the rest of the
    prefill can overlap with later work."""
    return min(layer, max(1, 7 * num_layers // 10))


@dataclass(frozen=True)
class Score:
    """A pruner's score of visual tokens from prefill features, float32 ``[B, L]``, higher is
    better, or None if its input was not recorded; `name` is a label for pictures."""

    name: str
    of: Callable[[PrefillFeatures], Tensor | None]


@dataclass(frozen=True)
class FeatureSpec:
    """The features that a prefill records. Specifications are united with ``|``.

    Args:
        attention: scores of the visual tokens, summed over heads, text tokens and layers, and by
            layer.
        hidden_layers: layers after which the hidden states are kept; 0 means the embeddings.
        score: of the pruner; None for `PrefillFeatures.attention`. A union has none.
        keys: whether the keys and values of all prompt tokens are read in the target's cache
            (`KVCache.taken`). Nothing is recorded for this.
    """

    attention: bool = False
    hidden_layers: tuple[int, ...] = ()
    similarities: tuple[Similarity, ...] = ()
    score: Score | None = field(default=None, compare=False)
    keys: bool = False

    def __or__(self, other: FeatureSpec) -> FeatureSpec:
        layers = sorted({*self.hidden_layers, *other.hidden_layers})
        similarities = sorted({*self.similarities, *other.similarities})
        attention, keys = self.attention or other.attention, self.keys or other.keys
        return FeatureSpec(attention, tuple(layers), tuple(similarities), keys=keys)

    def __bool__(self) -> bool:
        return self.attention or bool(self.hidden_layers) or bool(self.similarities)

    @property
    def score_name(self) -> str:
        return ATTENTION_NAME if self.score is None else self.score.name

    def scores(self, readings: PrefillFeatures) -> Tensor | None:
        """The pruner's score of visual tokens, float32 ``[B, L]``; None if not recorded."""
        if self.score is None:
            return readings.attention
        return self.score.of(readings)


NO_FEATURES = FeatureSpec()
ATTENTION = FeatureSpec(attention=True)
KEYS = FeatureSpec(keys=True)


@dataclass(frozen=True)
class PrefillFeatures:
    """Features recorded by one prefill; what was not requested is None or empty.

    Attention and similarities are float32 ``[B, L]``, zero at text and padding. Hidden states by
    layer are ``[B, L, D]`` in the model's dtype; padding is meaningless.
    """

    attention: Tensor | None = None
    attention_by_layer: tuple[Tensor, ...] = ()
    hidden_states: Mapping[int, Tensor] = field(default_factory=dict)
    similarities: Mapping[Similarity, Tensor] = field(default_factory=dict)
