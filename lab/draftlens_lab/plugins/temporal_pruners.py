"""Pruning by what changes over time (SpecVLM, section 4.4: its baselines)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import NO_READINGS, ReadingSpec
from draftlens.pruning.base import Visual, remaining, spread, top


def _whole_frames(visual: Visual, order: Tensor, keep: int) -> Tensor:
    """Tokens of whole frames until there are `keep`; the last frame gives evenly spaced ones.

    Args:
        visual: the tokens.
        order: times of the frames, the most important first, int64 ``[T]``.
        keep: number of tokens.
    """
    parts: list[Tensor] = []
    budget = keep
    for time in order.tolist():
        frame = (visual.cells[:, 0] == time).nonzero()[:, 0]
        part = frame[spread(len(frame), min(budget, len(frame)), frame.device)]
        parts.append(part)
        budget -= len(part)
        if budget == 0:
            break
    return torch.cat(parts).sort().values if parts else visual.cells.new_empty(0)


@dataclass(frozen=True)
class FramePruner:
    """Drops whole frames at regular intervals (the paper's SD-Frame)."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """As many evenly spaced frames as the budget pays for, the last of them in part."""
        times = torch.unique(visual.cells[:, 0])
        num_frames = min(len(times), -(-keep * len(times) // max(len(visual), 1)))
        first = spread(len(times), num_frames, times.device)
        others = remaining(len(times), first)
        return _whole_frames(visual, torch.cat([times[first], times[others]]), keep)


@dataclass(frozen=True)
class FastVIDPruner:
    """Drops the frames most like the one before, after FastVID (arXiv 2503.11187) as the paper uses
    it."""

    readings: ClassVar[ReadingSpec] = NO_READINGS

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Whole frames, those with the greatest change before them first; the first frame leads."""
        times = torch.unique(visual.cells[:, 0])
        if len(times) == 0:
            return visual.cells.new_empty(0)
        means = torch.stack(
            [visual.features[visual.cells[:, 0] == time].float().mean(0) for time in times]
        )
        change = 1 - cosine_similarity(means[1:], means[:-1], dim=-1)
        change = torch.cat([change.new_full((1,), torch.inf), change])
        return _whole_frames(visual, times[change.argsort(descending=True, stable=True)], keep)


@dataclass(frozen=True)
class DyCokePruner:
    """Drops tokens most like the one at the same place a frame before, after DyCoke (arXiv
    2411.15024).

    Frames are taken in groups of `group`; the first of each group stays before all others.

    Raises:
        ConfigError: a group of less than one frame.
    """

    readings: ClassVar[ReadingSpec] = NO_READINGS
    group: int = 4

    def __post_init__(self) -> None:
        if self.group < 1:
            raise ConfigError(f"group must be at least 1 frame, not {self.group}")

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The tokens that changed most; those of a group's first frame count as changed wholly."""
        return top(self._change(visual), keep) if keep else visual.cells.new_empty(0)

    def _change(self, visual: Visual) -> Tensor:
        """How much each token differs from the last one at its place, 0 to 2; 4 where a group
        begins."""
        change = torch.full((len(visual),), 4.0, device=visual.cells.device)
        latest: dict[tuple[int, int], int] = {}
        pairs = []
        for index, (time, row, column) in enumerate(visual.cells.tolist()):
            previous = latest.get((row, column))
            if previous is not None and time % self.group:
                pairs.append((index, previous))
            latest[row, column] = index
        if pairs:
            new, old = torch.tensor(pairs, device=change.device).unbind(1)
            features = visual.features.float()
            change[new] = 1 - cosine_similarity(features[new], features[old], dim=-1)
        return change
