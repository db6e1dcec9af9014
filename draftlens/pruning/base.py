"""The protocol of all pruners: one row's visual tokens in, the indices of the kept ones out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry, make
from draftlens.core.prefill_readings import ATTENTION_NAME, FeatureSpec


@dataclass(frozen=True)
class Visual:
    """The n visual tokens of one row, in the order of the prompt.

    Args:
        cells: int64 ``[n, 3]``, frame, row and column of each (`models.visual_grid`).
        features: ``[n, D]``, the embeddings that the draft would read.
        scores: float32 ``[n]``, the score that the pruner's readings name (by default the attention
            of the target's text to each token). None if it was not read.
    """

    cells: Tensor
    features: Tensor
    scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.cells)


@dataclass(frozen=True)
class Choice:
    """A pruner's choice among one row's n visual tokens, for observers: the positions of these in
    the draft's prompt, int64 ``[n]``, and the chosen indices, int64 ``[K]``, increasing."""

    positions: Tensor
    visual: Visual
    kept: Tensor
    score_name: str = ATTENTION_NAME


class Pruner(Protocol):
    """Chooses visual tokens for the draft; text always stays.

    A pruner is a frozen dataclass; its fields are its options.
    """

    @property
    def readings(self) -> FeatureSpec:
        """The readings of the target's prefill that `select` needs, and the score made of them: a
        `ClassVar`, or a property if it depends on the options."""
        ...

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Exactly `keep` strictly increasing indices, int64 ``[keep]``, with 0 <= keep <= n."""
        ...


def check_share(option: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a number from 0 to 1."""
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{option} is a share between 0 and 1, not {value!r}")


def keep_count(count: int, prune_ratio: float) -> int:
    """How many of `count` visual tokens stay: n(1 - r), rounded down. 1e-9 is added first, because
    100 * (1 - 0.9) is 9.999999999999998 in floating point."""
    return int(count * (1 - prune_ratio) + 1e-9)


SHARE = 0.5
"""Of a token's score in its chance to be kept (`chances_of`)."""

PRUNERS = Registry(
    "pruner",
    {
        "specvlm": "draftlens.pruning.attention:SpecVLMPruner",
        "attention": "draftlens.pruning.attention:AttentionPruner",
        "attention-sampled": "draftlens.pruning.attention:SampledAttentionPruner",
        "uniform": "draftlens.pruning.attention:UniformPruner",
        "uv": "draftlens.pruning.similarity:UVPruner",
        "uv-sampled": "draftlens.pruning.similarity:SampledUVPruner",
    },
    group="draftlens.pruners",
    lab=("all", "dycoke", "fastvid", "frames", "grid", "none", "random", "window"),
)


def make_pruner(choice: Any) -> Pruner:
    """A pruner from a name, a mapping with `name` and options, or a pruner.

    Raises:
        ConfigError: no pruner has this name, it has no such option, or a value makes no sense.

    Example:

        >>> make_pruner({"name": "specvlm", "attention_mass": 0.2})
        SpecVLMPruner(attention_mass=0.2)
    """
    pruner: Pruner = make(PRUNERS, choice, "select")
    return pruner


def spread(count: int, keep: int, device: torch.device) -> Tensor:
    """`keep` of `count` places, the middle of each equal part, int64 ``[keep]``."""
    if keep > count:
        raise ConfigError(f"cannot keep {keep} of {count} tokens")
    middles = (torch.arange(keep, device=device) * 2 + 1) * count
    return middles.div(2 * max(keep, 1), rounding_mode="floor")


def top(scores: Tensor, keep: int) -> Tensor:
    """The `keep` highest scores' indices, first of equal ones; increasing, int64 ``[keep]``."""
    return scores.argsort(descending=True, stable=True)[:keep].sort().values


KRONECKER = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)
"""1/g, 1/g² and 1/g³ with g⁴ = g + 1, of which whole multiples spread evenly in [0, 1)."""

LEAST_CHANCE = 1e-9
"""Of an index without weight, so that such indices are spread, too."""


def order_sample(chances: Tensor, points: Tensor, keep: int, start: float = 0.5) -> Tensor:
    """`keep` of n indices by order sampling (Rosén 1997) with quasi-random numbers.

    The indices with the greatest chance / u stay, where u is the point's place in a Kronecker
    sequence. So an index is the more likely to stay the greater its chance is, and of indices with
    equal chances those stay that are spread evenly, without the period that equal distances have.

    Args:
        chances: ``[..., n]``, not negative; infinite for indices that stay if there is room.
        points: whole numbers ``[..., n, 3]``, such as frame, row and column.
        start: u of the point 0; with 0 it always stays.

    Returns:
        int64 ``[..., keep]``, increasing; the same on every device.
    """
    steps = points.new_tensor(KRONECKER, dtype=torch.double)
    places = (points.double() @ steps + start) % 1
    ratios = (chances.double() + LEAST_CHANCE) / (places + LEAST_CHANCE)
    return ratios.argsort(dim=-1, descending=True, stable=True)[..., :keep].sort(dim=-1).values


def chances_of(scores: Tensor, share: float) -> Tensor:
    """Chances ``[n]`` for `order_sample`: `share` parts of the score over the mean score, and
    1 - `share` parts of 1. If scores are negative, the least one is subtracted first."""
    excess = scores.double()
    excess = excess + (-excess).relu().amax() if len(excess) else excess
    mean = excess.mean().clamp(min=torch.finfo(torch.double).tiny)
    return share * excess / mean + (1 - share)


def remaining(count: int, chosen: Tensor) -> Tensor:
    is_free = torch.ones(count, dtype=torch.bool, device=chosen.device)
    is_free[chosen] = False
    return is_free.nonzero()[:, 0]
