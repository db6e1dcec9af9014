"""PyramidDrop: drops in several stages."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.pruning.base import keep_count, top
from draftlens_lab.bench.lossy.base import Dropping, at_shares, check_layers, check_share

STAGE_ENDS = (0.25, 0.5, 0.75)
"""Ends of the first three of four equal stages, as shares of the depth: layers 8, 16 and 24 of
32."""


@dataclass(frozen=True)
class PDrop(Dropping):
    """PyramidDrop (arXiv 2410.17247): at the end of each stage of layers the share λ of the visual
    tokens stays.

    Implemented: equal stages by depth; the ranking by the attention of the prompt's last token in
    the stage's last layer, the mean over heads; n·λ^s tokens after stage s; original positions.

    Not implemented: the original computes the ranking from the states after the stage with the
    projections of the next layer; here it is the attention that the stage's last layer computed
    anyway. Training with drops.

    Args:
        keep_ratio: λ, share of the visual tokens that each drop leaves.
        drop_layers: layers after which tokens are dropped, counted from 1; None ends four equal
            stages.
    """

    keep_ratio: float = 0.5
    drop_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_share("keep_ratio", self.keep_ratio)
        object.__setattr__(self, "drop_layers", check_layers(self.drop_layers))

    def layers(self, depth: int) -> tuple[int, ...]:
        """The ends of all stages but the last."""
        if self.drop_layers is not None:
            return self.drop_layers
        return at_shares(depth, STAGE_ENDS)

    def keep(self, attention: Tensor) -> Tensor:
        """The share λ with the most attention."""
        scores = attention.mean(0)
        return top(scores, keep_count(len(scores), 1 - self.keep_ratio))
