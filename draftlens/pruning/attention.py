"""Pruning by the target's attention, and its two stages separately (SpecVLM, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import ATTENTION, NO_FEATURES, FeatureSpec
from draftlens.pruning.base import (
    SHARE,
    Visual,
    chances_of,
    check_share,
    order_sample,
    remaining,
    spread,
    top,
)


def _scores(visual: Visual) -> Tensor:
    if visual.scores is None:
        raise ConfigError("this pruner needs the target's attention, and none was read")
    return visual.scores


@dataclass(frozen=True)
class SpecVLMPruner:
    """Stage I keeps the most attended tokens, stage II spaces the rest evenly (eq. 6 and 7).

    Args:
        attention_mass: λ, the share of all visual attention that stage I must hold, 0 to 1.

    Raises:
        ConfigError: `attention_mass` is no share.
    """

    readings: ClassVar[FeatureSpec] = ATTENTION
    attention_mass: float = 0.4

    def __post_init__(self) -> None:
        check_share("attention_mass", self.attention_mass)

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The smallest set with λ of the attention, at most `keep`, and spaced others up to it."""
        scores = _scores(visual)
        order = scores.argsort(descending=True, stable=True)
        first = order[: min(self._stage_one_count(scores[order]), keep, len(visual))]
        rest = remaining(len(visual), first)
        second = rest[spread(len(rest), keep - len(first), scores.device)]
        return torch.cat([first, second]).sort().values

    def _stage_one_count(self, descending: Tensor) -> int:
        """The fewest tokens that hold λ of the attention."""
        if not self.attention_mass:
            return 0
        mass = descending.double().cumsum(0)
        return int((mass < self.attention_mass * descending.double().sum()).sum()) + 1


@dataclass(frozen=True)
class AttentionPruner:
    """Stage I alone, for the whole budget: the most attended tokens."""

    readings: ClassVar[FeatureSpec] = ATTENTION

    def select(self, visual: Visual, keep: int) -> Tensor:
        return top(_scores(visual), keep)


@dataclass(frozen=True)
class SampledAttentionPruner:
    """An order sample of the tokens by the target's attention to them (`order_sample`), which is
    close to a random choice where attention says little.

    Args:
        share: of the attention in a token's chance, 0 to 1; the rest is equal for all.

    Raises:
        ConfigError: `share` is no share.
    """

    readings: ClassVar[FeatureSpec] = ATTENTION
    share: float = SHARE

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def select(self, visual: Visual, keep: int) -> Tensor:
        return order_sample(chances_of(_scores(visual), self.share), visual.cells, keep)


@dataclass(frozen=True)
class UniformPruner:
    """Every n-th token in raster order (SpecVLM's stage II alone, its SD-Uniform)."""

    readings: ClassVar[FeatureSpec] = NO_FEATURES

    def select(self, visual: Visual, keep: int) -> Tensor:
        return spread(len(visual), keep, visual.cells.device)
