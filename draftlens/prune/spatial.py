"""Pruning by place, without looking at the content."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.readings import NO_READINGS, ReadingSpec
from draftlens.prune.base import Visual, spread


@dataclass(frozen=True)
class UniformPruner:
    """Every n-th token in raster order, over all frames (SpecVLM's stage II by itself, and its
    SD-Uniform)."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Equal distances in the order of the prompt."""
        return spread(len(visual), keep, visual.cells.device)


@dataclass(frozen=True)
class GridPruner:
    """Every frame keeps a grid of its own, evenly spaced in both directions."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Frames share the budget as evenly as whole numbers allow; each keeps the cells nearest to
        a regular grid."""
        frames = [
            (visual.cells[:, 0] == time).nonzero()[:, 0]
            for time in torch.unique(visual.cells[:, 0])
        ]
        budget, kept = keep, []
        # Small frames first, so that what they cannot use is shared by the others.
        for left, frame in zip(range(len(frames), 0, -1), sorted(frames, key=len), strict=True):
            share = min(len(frame), budget // left)
            budget -= share
            kept.append(frame[_grid(visual.cells[frame, 1:], share)])
        # What whole numbers left over goes, one each, to evenly spaced tokens that are not kept
        # yet.
        chosen = torch.cat(kept) if kept else visual.cells.new_empty(0)
        rest = torch.ones(len(visual), dtype=torch.bool, device=chosen.device)
        rest[chosen] = False
        others = rest.nonzero()[:, 0]
        return (
            torch.cat([chosen, others[spread(len(others), keep - len(chosen), chosen.device)]])
            .sort()
            .values
        )


def _grid(cells: Tensor, keep: int) -> Tensor:
    """`keep` of one frame's cells ``[m, 2]`` on a regular grid, int64 ``[keep]``."""
    if keep == 0:
        return cells.new_empty(0)
    high, wide = (int(n) + 1 for n in cells.max(0).values)
    rows = max(1, min(keep, round(sqrt(keep * high / wide))))
    counts = [
        len(part) for part in torch.arange(keep).tensor_split(rows)
    ]  # kept cells of each kept row
    heights = spread(high, min(rows, high), cells.device).tolist()
    free = torch.ones(len(cells), dtype=torch.bool, device=cells.device)
    chosen = []
    for row, count in enumerate(counts):
        height = heights[row * len(heights) // rows]
        for column in range(count):
            aim = cells.new_tensor([height, int((column + 0.5) * wide / count)])
            distance = (
                (cells - aim).square().sum(-1).masked_fill(~free, torch.iinfo(torch.long).max)
            )
            nearest = int(distance.argmin())
            free[nearest] = False
            chosen.append(nearest)
    return cells.new_tensor(chosen)


@dataclass(frozen=True)
class RandomPruner:
    """Any tokens, all alike (the paper's SD-Rand).

    Args:
        seed: of the choice.

    Raises:
        ConfigError: `seed` is no whole number from 0.
    """

    readings: ClassVar[ReadingSpec] = NO_READINGS
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"seed is a whole number from 0, not {self.seed!r}")

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The same choice for the same seed and count, on every device."""
        generator = torch.Generator().manual_seed(self.seed)
        return (
            torch.randperm(len(visual), generator=generator)[:keep]
            .sort()
            .values.to(visual.cells.device)
        )


@dataclass(frozen=True)
class WindowPruner:
    """One stretch of tokens (SpecVLM, figure 7a).

    Args:
        window: where it lies: `front`, `middle` or `end`.

    Raises:
        ConfigError: it lies elsewhere.
    """

    readings: ClassVar[ReadingSpec] = NO_READINGS
    window: str = "front"

    def __post_init__(self) -> None:
        if self.window not in ("front", "middle", "end"):
            raise ConfigError(f"window is front, middle or end, not {self.window!r}")

    def select(self, visual: Visual, keep: int) -> Tensor:
        """`keep` tokens that follow each other."""
        spare = len(visual) - keep
        start = {"front": 0, "middle": spare // 2, "end": spare}[self.window]
        return torch.arange(start, start + keep, device=visual.cells.device)


@dataclass(frozen=True)
class NonePruner:
    """Prunes nothing: the draft sees everything, whatever the ratio."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """All tokens."""
        return torch.arange(len(visual), device=visual.cells.device)


@dataclass(frozen=True)
class AllPruner:
    """Prunes everything: a draft that only reads, whatever the ratio."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """No token."""
        return torch.arange(0, device=visual.cells.device)
