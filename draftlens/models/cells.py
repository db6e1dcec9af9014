"""Where each visual token looks: its frame, row and column, found without knowing the family.

M-RoPE positions say it outright. Otherwise a video is cut into as many equal frames as it has, and
a picture into tiles of the size that the vision tower takes; what follows its first tile in rows
that end with newlines is one grid. Frames and tiles are square; tokens left over (newlines) go with
the last cell before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Any

import torch
from torch import Tensor

NOWHERE = -1


@dataclass(frozen=True)
class Layout:
    """How the pictures and videos of a batch became N visual tokens, as far as it is known.

    Args:
        video: which of the tokens, in order, stand for videos, bool ``[N]``; None if none do.
        frames: frames of each video.
        tile: tokens that the vision tower makes of one tile.
        pictures: tokens of each picture (or of each tile), in order.
        videos: tokens of each video, in order.
        newline: what the model puts behind a row of a picture, ``[D]``.
    """

    video: Tensor | None = None
    frames: int | None = None
    tile: int | None = None
    pictures: tuple[int, ...] = ()
    videos: tuple[int, ...] = ()
    newline: Tensor | None = None


UNKNOWN = Layout()


def read_layout(model: Any, inputs: Mapping[str, Any], visual: Tensor, video: Tensor) -> Layout:
    """What a model and its inputs tell of the layout.

    `generate` may have encoded the pixels already: then the features tell it.

    Args:
        model: of transformers.
        inputs: what its forward gets.
        visual: which tokens stand for pixels, bool ``[B, L]``.
        video: which of them have an id that stands for videos only, bool ``[B, L]``.
    """
    encoded = inputs.get("mm_encoder_outputs") or {}
    pictures, videos = (
        getattr(encoded.get(kind), "pooler_output", None) for kind in ("image", "video")
    )
    if "image" not in encoded and "pixel_values" not in inputs:
        video = visual  # also where videos and pictures share an id
    return Layout(
        video=video[visual],
        frames=_frames(inputs.get("pixel_values_videos"), encoded.get("video")),
        tile=_tile(model.config),
        pictures=_sizes(pictures),
        videos=_sizes(videos),
        newline=_newline(model),
    )


def _frames(pixels: Any, video: Any) -> int | None:
    """Frames of each video of a batch, where the model takes them as an axis of their own.

    Features of all frames went in, one row for each video came out.
    """
    if isinstance(pixels, Tensor):
        return pixels.shape[1] if pixels.ndim == 5 else None
    taken, made = (getattr(video, name, None) for name in ("last_hidden_state", "pooler_output"))
    if isinstance(taken, Tensor) and isinstance(made, Tensor) and made.ndim == 3:
        return len(taken) // len(made)
    return None


def _tile(config: Any) -> int | None:
    """Visual tokens of one tile of a square vision tower, after a pixel shuffle if there is one."""
    vision = getattr(config, "vision_config", None)
    size, patch = (getattr(vision, name, None) for name in ("image_size", "patch_size"))
    size, patch = (
        value[0] if isinstance(value, (list, tuple)) else value for value in (size, patch)
    )
    if not isinstance(size, int) or not isinstance(patch, int):
        return None
    ratio, factor = getattr(config, "downsample_ratio", None), getattr(config, "scale_factor", None)
    shuffled = ratio if ratio else 1 / factor if factor else 1.0
    return round((size // patch * shuffled) ** 2) or None


def _sizes(features: Any) -> tuple[int, ...]:
    """Tokens of each picture or video, whose features are ``[n, D]`` each; none where they are not
    apart."""
    if isinstance(features, Tensor):
        return (features.shape[1],) * len(features) if features.ndim == 3 else ()
    return tuple(len(part) for part in features or ())


def _newline(model: Any) -> Tensor | None:
    """The embedding behind each row of a picture ``[D]``, where the model has one and it is not
    offloaded."""
    newline = getattr(getattr(model, "base_model", model), "image_newline", None)
    return newline if isinstance(newline, Tensor) and not newline.is_meta else None


def cells(
    visual: Tensor, position_ids: Tensor, layout: Layout = UNKNOWN, newlines: Tensor | None = None
) -> Tensor:
    """The (t, h, w) cell of every visual token, int64 ``[B, L, 3]``; NOWHERE at text.

    `t` counts frames, pictures and tiles from the start of the row, a picture and its details one
    by one; `h` and `w` count from the top left of each.

    Args:
        visual: which tokens stand for pixels, bool ``[B, L]``.
        position_ids: int64 ``[B, L]``, or ``[axes, B, L]`` under M-RoPE (the last three are time,
            height, width).
        layout: of the batch.
        newlines: which tokens end a row of a picture, bool ``[B, L]``.
    """
    found = torch.full((*visual.shape, 3), NOWHERE)
    axes = (
        position_ids[-3:].cpu() if position_ids.ndim == 3 and position_ids.shape[0] >= 3 else None
    )
    ends = torch.zeros(visual.shape, dtype=torch.bool) if newlines is None else newlines.cpu()
    for row, parts in enumerate(_parts(visual.cpu(), layout)):
        time = 0
        for run in _runs(parts):
            if axes is not None and bool((axes[:, row, run] != axes[0, row, run]).any()):
                grid = torch.stack(
                    [torch.unique(axis, return_inverse=True)[1] for axis in axes[:, row, run]], -1
                )
            elif parts[run.start] < 0:
                grid = _raster(run.stop - run.start, layout.frames, layout.tile)
            else:
                grid = _picture(ends[row, run], layout.tile)
            grid[:, 0] += time
            time = int(grid[-1, 0]) + 1
            found[row, run] = grid
    return found.to(visual.device)


def _parts(visual: Tensor, layout: Layout) -> Tensor:
    """Where each token belongs, int64 ``[B, L]``: pictures count up from 1, videos down from -1,
    text is 0."""
    total = int(visual.sum())
    video = torch.zeros(total, dtype=torch.bool) if layout.video is None else layout.video.cpu()
    numbers = torch.where(video, -1, 1)
    for kind, sizes in ((~video, layout.pictures), (video, layout.videos)):
        if sum(sizes) == int(kind.sum()):
            numbers[kind] *= torch.arange(1, len(sizes) + 1).repeat_interleave(
                torch.tensor(sizes, dtype=torch.long)
            )
    parts = torch.zeros(visual.shape, dtype=torch.long)
    parts[visual] = numbers
    return parts


def _runs(parts: Tensor) -> Iterator[slice]:
    """Stretches of one picture or video without text between them, of one row ``[L]``."""
    edges = torch.nn.functional.pad(parts, (1, 1)).diff().nonzero()[:, 0].tolist()
    for start, stop in pairwise(edges):
        if parts[start]:
            yield slice(start, stop)


def _picture(ends: Tensor, tile: int | None) -> Tensor:
    """Cells of a picture's tokens, int64 ``[count, 3]``: a tile that shows it whole, then its
    details row by row.

    Args:
        ends: which of them end a row, bool ``[count]``; they go with the cell before.
        tile: tokens of one tile.
    """
    count = len(ends)
    if not tile or not ends[tile:].any() or ends[:tile].any():
        return _raster(count, None, tile)
    place, rest = torch.arange(count), ends[tile:]
    row = rest.cumsum(0)
    starts = torch.nn.functional.pad(rest.nonzero()[:, 0] + 1, (1, 0))
    detail = torch.stack([torch.ones_like(row), row, place[: count - tile] - starts[row]], -1)
    return torch.cat([_raster(tile, None, tile), detail])[
        torch.where(ends, 0, place).cummax(0).values
    ]


def _raster(count: int, frames: int | None, tile: int | None) -> Tensor:
    """Cells of a run of `count` tokens in raster order, int64 ``[count, 3]``."""
    per = (
        count // frames if frames and frames <= count else tile if tile and tile <= count else count
    )
    side = isqrt(per)
    width = side if side * side == per else per if per <= 1 else isqrt(per - 1) + 1
    place = torch.arange(count).clamp_max(count // per * per - 1)
    inside = place % per
    return torch.stack([place // per, inside // width, inside % width], -1)
