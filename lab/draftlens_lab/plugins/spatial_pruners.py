"""Pruning by place, whatever the content is."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import NO_READINGS, ReadingSpec
from draftlens.pruning.base import Visual, remaining, spread


@dataclass(frozen=True)
class GridPruner:
    """Every frame keeps a grid of its own, evenly spaced in both directions."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Frames share the budget as evenly as whole numbers allow; each keeps the cells nearest to
        a regular grid."""
        times = visual.cells[:, 0]
        frames = [(times == time).nonzero()[:, 0] for time in torch.unique(times)]
        budget = keep
        parts = []
        # Small frames first, so that the others share what these cannot use.
        for index, frame in enumerate(sorted(frames, key=len)):
            share = min(len(frame), budget // (len(frames) - index))
            budget -= share
            parts.append(frame[_grid_cells(visual.cells[frame, 1:], share)])
        chosen = torch.cat(parts) if parts else visual.cells.new_empty(0)
        # The remainder of the divisions goes to evenly spaced tokens, one each.
        others = remaining(len(visual), chosen)
        extra = others[spread(len(others), keep - len(chosen), chosen.device)]
        return torch.cat([chosen, extra]).sort().values


def _grid_cells(cells: Tensor, keep: int) -> Tensor:
    """`keep` of one frame's cells ``[m, 2]`` on a regular grid, int64 ``[keep]``."""
    if keep == 0:
        return cells.new_empty(0)
    height, width = (int(size) + 1 for size in cells.max(0).values)
    num_rows = max(1, min(keep, round(sqrt(keep * height / width))))
    cells_per_row = [len(part) for part in torch.arange(keep).tensor_split(num_rows)]
    heights = spread(height, min(num_rows, height), cells.device).tolist()
    is_free = torch.ones(len(cells), dtype=torch.bool, device=cells.device)
    indices = []
    for row, count in enumerate(cells_per_row):
        top_edge = heights[row * len(heights) // num_rows]
        for column in range(count):
            place = cells.new_tensor([top_edge, int((column + 0.5) * width / count)])
            distances = (cells - place).square().sum(-1)
            distances = distances.masked_fill(~is_free, torch.iinfo(torch.long).max)
            nearest = int(distances.argmin())
            is_free[nearest] = False
            indices.append(nearest)
    return cells.new_tensor(indices)


@dataclass(frozen=True)
class RandomPruner:
    """Random tokens, all equally likely (the paper's SD-Rand).

    Args:
        seed: seed of the choice.

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
        indices = torch.randperm(len(visual), generator=generator)[:keep]
        return indices.sort().values.to(visual.cells.device)


@dataclass(frozen=True)
class WindowPruner:
    """One stretch of tokens (SpecVLM, figure 7a).

    Args:
        window: the place of the stretch: `front`, `middle` or `end`.

    Raises:
        ConfigError: `window` is another word.
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
