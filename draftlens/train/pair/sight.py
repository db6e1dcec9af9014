"""Teaching a vision tower to see before the language model reads from it, as every tower of this architecture is.

Trained together from nothing, the pair's language model learns the captions' wording and leaves its eyes shut: that
alone predicts five tokens of six. So tower and projector first learn to name, from each of a frame's 16 pooled
cells, the background, the cell's quarter and what lives there: colour, shape, place and radius. The heads
that say so are thrown away afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from draftlens.train.pair.data import pixels
from draftlens.train.pair.models import SIDE
from draftlens.train.world import frame_times, render, sample_scene
from draftlens.train.world.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, Scene, pose

FRAMES = 2  # of each scene
SCALE = 6.0  # offsets and radii are some tenths of picture units: this brings them near 1


@dataclass(frozen=True)
class Labels:
    """What is where in ``N`` frames; ``Q`` is the quarter in reading order."""

    background: torch.Tensor  # [N] int64
    colour: torch.Tensor  # [N, Q] int64, len(COLOURS) where nothing can be seen
    shape: torch.Tensor  # [N, Q] int64, len(SHAPES) where nothing can be seen
    where: torch.Tensor  # [N, Q, 3] float32: offset from the picture's middle in x and y, and radius; times SCALE


class Namer(nn.Module):
    """Linear heads on the normalised visual tokens: the language model's layers begin by the same normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.sizes = (len(BACKGROUNDS), len(COLOURS) + 1, len(SHAPES) + 1, 3, len(PLACES))
        self.head = nn.Linear(width, sum(self.sizes))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``[N, 16, D]`` visual tokens to scores ``[N, Q, 4, ...]`` of the four cells of each quarter."""
        scores = self.head(F.rms_norm(tokens.float(), (self.width,)))
        return torch.split(by_quarter(scores), list(self.sizes), dim=-1)


def by_quarter(cells: torch.Tensor) -> torch.Tensor:
    """A frame's 16 cells ``[N, 16, D]`` in reading order to ``[N, Q, 4, D]``, by the quarter they lie in."""
    grid = cells.view(-1, 2, 2, 2, 2, cells.shape[-1])  # row half, row in it, column half, column in it
    return grid.permute(0, 1, 3, 2, 4, 5).reshape(len(cells), 4, 4, -1)


def _label(scene: Scene, time: float) -> tuple[int, list[int], list[int], list[list[float]]]:
    colour, shape, where = [len(COLOURS)] * 4, [len(SHAPES)] * 4, [[0.0] * 3 for _ in PLACES]
    for thing in scene.things:
        x, y, radius = pose(thing, time)
        if not -0.3 * radius < x < 1 + 0.3 * radius:
            continue  # hardly anything of it is inside the picture
        quarter = PLACES.index(thing.place)
        colour[quarter], shape[quarter] = COLOURS.index(thing.colour), SHAPES.index(thing.shape)
        where[quarter] = [SCALE * (x - 0.5), SCALE * (y - 0.5), SCALE * radius]
    return BACKGROUNDS.index(scene.background), colour, shape, where


def sights(seed: int, scenes: int, start: int) -> Iterator[tuple[torch.Tensor, Labels]]:
    """Endless frames ``[N, 3, S, S]`` with their labels; every scene gives FRAMES random ones of its 16."""
    for step in range(start, 2**31):
        rng = np.random.default_rng([seed, step, 7])
        frames, labels = [], []
        for i in range(scenes):
            scene = sample_scene(step * scenes + i)
            seen = render(scene, 16, SIDE)
            for at in rng.permutation(16)[:FRAMES]:
                frames.append(seen[at])
                labels.append(_label(scene, frame_times(16)[int(at)]))
        columns = [torch.tensor(column) for column in zip(*labels, strict=True)]
        yield pixels(np.stack(frames)), Labels(*columns)


def sight_loss(namer: Namer, tokens: torch.Tensor, labels: Labels) -> tuple[torch.Tensor, float]:
    """Summed losses of all heads, and the share of things whose colour and shape both were named rightly."""
    background, colour, shape, where, quarter = namer(tokens)
    wide = (len(tokens), 4, 4)
    loss = F.cross_entropy(background.flatten(0, 2), labels.background[:, None, None].expand(wide).flatten())
    for scores, truth in ((colour, labels.colour), (shape, labels.shape)):
        loss = loss + F.cross_entropy(scores.flatten(0, 2), truth[..., None].expand(wide).flatten())
    own = torch.arange(4)[None, :, None].expand(wide)  # each cell must know its own quarter
    loss = loss + F.cross_entropy(quarter.flatten(0, 2), own.flatten())
    there = labels.colour != len(COLOURS)
    loss = loss + 2 * F.smooth_l1_loss(where[there], labels.where[there][:, None].expand(-1, 4, -1), beta=0.1)
    named = (colour.argmax(-1) == labels.colour[..., None]) & (shape.argmax(-1) == labels.shape[..., None])
    return loss, float(named[there].float().mean())


def visual_tokens(model: Any, frames: torch.Tensor) -> torch.Tensor:
    """Frames ``[N, 3, S, S]`` to the visual tokens ``[N, 16, D]`` that the language model would read."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tokens: torch.Tensor = model.model.get_video_features(frames[:, None]).pooler_output
    return tokens[:, :-1]  # the last one is the newline
