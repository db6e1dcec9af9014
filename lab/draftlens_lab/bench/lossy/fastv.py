"""FastV: one drop after an early layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.pruning.base import keep_count, top
from draftlens_lab.bench.lossy.base import Dropping, check_layer, check_share


@dataclass(frozen=True)
class FastV(Dropping):
    """FastV (arXiv 2403.06764): after layer K, drop the visual tokens with the least attention.

    Implemented: the ranking by the attention of the prompt's last token in layer K, the mean over
    heads; the drop of the share R in one step during the prefill; caches of fewer tokens after
    layer K; original positions.

    Not implemented: nothing of its inference. (The paper describes the score as the attention that
    a token receives from all others; its code, like this, reads the last token's.)

    Args:
        layer: K, counted from 1.
        prune_ratio: R, share of the visual tokens that are dropped.
    """

    layer: int = 2
    prune_ratio: float = 0.5

    def __post_init__(self) -> None:
        check_layer("layer", self.layer)
        check_share("prune_ratio", self.prune_ratio)

    def layers(self, depth: int) -> tuple[int, ...]:
        return (self.layer,)

    def keep(self, attention: Tensor) -> Tensor:
        """The n(1 - R) most attended tokens."""
        scores = attention.mean(0)
        return top(scores, keep_count(len(scores), self.prune_ratio))
