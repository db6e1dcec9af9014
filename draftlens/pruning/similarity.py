"""UV-Prune: pruning by the similarity of the target's hidden states (ParallelVLM, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import (
    TEXTS,
    FeatureSpec,
    PrefillFeatures,
    Score,
    Similarity,
    early_layer,
)
from draftlens.pruning.base import SHARE, Visual, chances_of, check_share, order_sample, top

CRITERIA = ("similarity", "attention")


@dataclass(frozen=True)
class UVPruner:
    """Keeps the visual tokens that grow most similar to the text in the target's first layers.

    Equation 3 sums the variations S^l - S^(l-1) over the layers 1 to L. The sum telescopes, so the
    score of a token is S^L - S^0. The other options are the variants of figures 7b and 9.

    Args:
        layer: L. A target of fewer layers reads an earlier one
            (`core.prefill_readings.early_layer`).
        text: `"all"` sums over all text tokens, `"after"` over those after the first visual token.
        criterion: `"similarity"`; or `"attention"`, the attention that a token receives in layer L
            from the text after it, for any `text` (SpecVLM, equation 4, in one layer), which needs
            the target's whole prefill.
        variation: whether the score is the change since the beginning, which for similarities is
            S^0 and for attention that of the first layer. If not, it is S^L or the attention in
            layer L alone.

    Raises:
        ConfigError: a value makes no sense.
    """

    layer: int = 20
    text: str = "all"
    criterion: str = "similarity"
    variation: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.layer, int) or isinstance(self.layer, bool) or self.layer < 1:
            raise ConfigError(f"layer is a whole number from 1 on, not {self.layer!r}")
        if self.text not in TEXTS:
            raise ConfigError(f"unknown text {self.text!r}; known: {', '.join(TEXTS)}")
        if self.criterion not in CRITERIA:
            criteria = ", ".join(CRITERIA)
            raise ConfigError(f"unknown criterion {self.criterion!r}; known: {criteria}")
        if not isinstance(self.variation, bool):
            raise ConfigError(f"variation is true or false, not {self.variation!r}")

    @property
    def readings(self) -> FeatureSpec:
        """Two similarities, or the attention of all layers."""
        gained = " gained" if self.variation else ""
        if self.criterion == "attention":
            suffix = gained or " of one layer"
            return FeatureSpec(attention=True, score=Score(f"attention{suffix}", self._attention))
        similarities = (self._first, self._last) if self.variation else (self._last,)
        score = Score(f"similarity to the text{gained}", self._similarity)
        return FeatureSpec(similarities=similarities, score=score)

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The `keep` highest scores (equation 4)."""
        return top(self._scores(visual), keep)

    def _scores(self, visual: Visual) -> Tensor:
        if visual.scores is None:
            raise ConfigError(
                f"this pruner needs the target's {self.criterion} readings, and none were taken"
            )
        return visual.scores

    @property
    def _first(self) -> Similarity:
        return Similarity(0, self.text)

    @property
    def _last(self) -> Similarity:
        return Similarity(self.layer, self.text)

    def _similarity(self, readings: PrefillFeatures) -> Tensor | None:
        last = readings.similarities.get(self._last)
        if last is None or not self.variation:
            return last
        return last - readings.similarities[self._first]

    def _attention(self, readings: PrefillFeatures) -> Tensor | None:
        layers = readings.attention_by_layer
        if not layers:
            return None
        last = layers[early_layer(self.layer, len(layers)) - 1]
        return last - layers[0] if self.variation else last


@dataclass(frozen=True)
class SampledUVPruner(UVPruner):
    """An order sample of the tokens by the scores of `UVPruner` (`order_sample`), which is close
    to a random choice where these say little.

    Args:
        layer, text, criterion, variation: as for `UVPruner`.
        share: of the score in a token's chance, 0 to 1; the rest is equal for all.

    Raises:
        ConfigError: a value makes no sense.
    """

    share: float = SHARE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("share", self.share)

    def select(self, visual: Visual, keep: int) -> Tensor:
        return order_sample(chances_of(self._scores(visual), self.share), visual.cells, keep)
