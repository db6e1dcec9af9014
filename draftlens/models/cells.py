"""Where each visual token looks: its frame, row and column, found without knowing the family.

M-RoPE positions say it outright. Otherwise a run of visual tokens is cut into equal square frames: as many as the
video has, or of the size of one tile of the vision tower; tokens left over (newlines) go with the last cell before.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import torch
from torch import Tensor

NOWHERE = -1


def cells(visual: Tensor, position_ids: Tensor, frames: int | None = None, tile: int | None = None) -> Tensor:
    """The (t, h, w) cell of every visual token, int64 ``[B, L, 3]``; NOWHERE at text.

    `t` counts frames, pictures and tiles from the start of the row; `h` and `w` count from the top left of each.

    Args:
        visual: which tokens stand for pixels, bool ``[B, L]``.
        position_ids: int64 ``[B, L]``, or ``[axes, B, L]`` under M-RoPE (the last three are time, height, width).
        frames: frames of a video, if the prompt shows one.
        tile: visual tokens that the vision tower makes of one tile.
    """
    found = torch.full((*visual.shape, 3), NOWHERE, dtype=torch.long, device=visual.device)
    axes = position_ids[-3:] if position_ids.ndim == 3 and position_ids.shape[0] >= 3 else None
    for row in range(visual.shape[0]):
        time = 0
        for run in _runs(visual[row]):
            if axes is not None and bool((axes[:, row, run] != axes[0, row, run]).any()):
                grid = torch.stack([torch.unique(axis, return_inverse=True)[1] for axis in axes[:, row, run]], -1)
            else:
                grid = _raster(run.stop - run.start, frames, tile).to(visual.device)
            grid[:, 0] += time
            time = int(grid[-1, 0]) + 1
            found[row, run] = grid
    return found


def _runs(visual: Tensor) -> Iterator[slice]:
    """Stretches of visual tokens without text between them, of one row ``[L]``."""
    edges = torch.nn.functional.pad(visual.int(), (1, 1)).diff().nonzero()[:, 0].tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        yield slice(start, stop)


def _raster(count: int, frames: int | None, tile: int | None) -> Tensor:
    """Cells of a run of `count` tokens in raster order, int64 ``[count, 3]``."""
    per = count // frames if frames and frames <= count else tile if tile and tile <= count else count
    side = isqrt(per)
    width = side if side * side == per else per if per <= 1 else isqrt(per - 1) + 1
    place = torch.arange(count).clamp_max(count // per * per - 1)
    inside = place % per
    return torch.stack([place // per, inside // width, inside % width], -1)
