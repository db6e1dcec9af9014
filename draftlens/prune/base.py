"""The seam of all pruners: one row's visual tokens in, the indices of those that stay out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.registry import Registry


@dataclass(frozen=True)
class Visual:
    """The n visual tokens of one row, in the order of the prompt.

    Args:
        cells: int64 ``[n, 3]``, frame, row and column of each (`models.cells`).
        features: ``[n, D]``, what the draft would read.
        scores: float32 ``[n]``, how much the target's text looks at each; only for a pruner that
            `needs_scores`.
    """

    cells: Tensor
    features: Tensor
    scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.cells)


class Pruner(Protocol):
    """Chooses visual tokens for the draft; text always stays."""

    needs_scores: ClassVar[bool]

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Exactly `keep` strictly rising indices, int64 ``[keep]``, with 0 <= keep <= n."""
        ...


def keep_count(count: int, prune_ratio: float) -> int:
    """How many of `count` visual tokens stay: n(1 - r), rounded down.

    A hair is added first: 100 * (1 - 0.9) is 9.999999999999998 to a computer, and 10 to everybody
    else.
    """
    return int(count * (1 - prune_ratio) + 1e-9)


PRUNERS = Registry(
    "pruner",
    {
        "specvlm": "draftlens.prune.attention:SpecVLMPruner",
        "attention": "draftlens.prune.attention:AttentionPruner",
        "uniform": "draftlens.prune.spatial:UniformPruner",
        "grid": "draftlens.prune.spatial:GridPruner",
        "random": "draftlens.prune.spatial:RandomPruner",
        "window": "draftlens.prune.spatial:WindowPruner",
        "frames": "draftlens.prune.temporal:FramePruner",
        "fastvid": "draftlens.prune.temporal:FastVIDPruner",
        "dycoke": "draftlens.prune.temporal:DyCokePruner",
        "none": "draftlens.prune.spatial:NonePruner",
        "all": "draftlens.prune.spatial:AllPruner",
    },
)


def make_pruner(name: str, options: Mapping[str, Any]) -> Pruner:
    """A pruner by name, with those of the options that it knows.

    Raises:
        ConfigError: no pruner has this name, or an option's value makes no sense.
    """
    kind = PRUNERS[name]
    known = inspect.signature(kind).parameters
    pruner: Pruner = kind(**{key: value for key, value in options.items() if key in known})
    return pruner


def spread(count: int, keep: int, device: torch.device) -> Tensor:
    """`keep` of `count` places at equal distances, the middle of each equal part, int64
    ``[keep]``."""
    if keep > count:
        raise ConfigError(f"cannot keep {keep} of {count} tokens")
    return ((torch.arange(keep, device=device) * 2 + 1) * count).div(
        2 * max(keep, 1), rounding_mode="floor"
    )


def top(scores: Tensor, keep: int) -> Tensor:
    """Indices of the `keep` highest scores, rising; of equals the first, int64 ``[keep]``."""
    return scores.argsort(descending=True, stable=True)[:keep].sort().values
