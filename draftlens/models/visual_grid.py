"""The cell (frame, row and column) of each visual token, for any model family.

M-RoPE positions contain the cells. For other models a video is divided evenly into its frames, and
a picture into tiles of the size that the vision tower takes. If newline tokens follow the first
tile of a picture, the tokens after that tile are one grid with a newline at the end of each row.
Frames and tiles are taken to be square. Tokens at the end that fill no frame or tile, and newlines,
get the cell of the token before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

NO_CELL = -1
"""Frame, row and column of a token that is not visual."""


@dataclass(frozen=True)
class GridLayout:
    """How the pictures and videos of a batch became N visual tokens; None or empty if unknown.

    Args:
        is_video: whether each visual token represents a video, bool ``[N]``, which other tokens
            (False) may follow; None if none does.
        num_frames: frames of each video.
        tile_tokens: visual tokens that the vision tower makes of one tile.
        picture_tokens: tokens of each picture (or of each tile), in order.
        video_tokens: tokens of each video, in order.
        newline: embedding that the model inserts after each row of a picture, ``[D]``, or None.
    """

    is_video: Tensor | None = None
    num_frames: int | None = None
    tile_tokens: int | None = None
    picture_tokens: tuple[int, ...] = ()
    video_tokens: tuple[int, ...] = ()
    newline: Tensor | None = None


UNKNOWN = GridLayout()


def read_layout(model: Any, inputs: Mapping[str, Any], visual: Tensor, video: Tensor) -> GridLayout:
    """The layout of a batch as far as its model and the arguments of its forward contain it, read
    from the features if `generate` has encoded the pixels already. `visual` and `video` (token ids
    used for videos only) are bool ``[B, L]``."""
    encoded = inputs.get("mm_encoder_outputs") or {}
    has_pictures = "image" in encoded or "pixel_values" in inputs
    if not has_pictures:
        video = visual  # also correct where videos and pictures share a token id
    # A mask as an index would wait for a GPU.
    visual_first = (~visual).flatten().to(torch.uint8).argsort(stable=True)
    return GridLayout(
        is_video=(video & visual).flatten()[visual_first],
        num_frames=_num_frames(inputs.get("pixel_values_videos"), encoded.get("video")),
        tile_tokens=_tile_tokens(model.config),
        picture_tokens=_token_counts(encoded.get("image")),
        video_tokens=_token_counts(encoded.get("video")),
        newline=_newline_embedding(model),
    )


def _num_frames(pixels: Any, encoded_video: Any) -> int | None:
    """Frames of each video of a batch, where the model has an axis for frames. `encoded_video` has
    the features of all frames before pooling, and one row for each video after it."""
    if isinstance(pixels, Tensor):
        return pixels.shape[1] if pixels.ndim == 5 else None
    frame_features = getattr(encoded_video, "last_hidden_state", None)
    video_features = getattr(encoded_video, "pooler_output", None)
    if not isinstance(frame_features, Tensor) or not isinstance(video_features, Tensor):
        return None
    if video_features.ndim != 3:
        return None
    return len(frame_features) // len(video_features)


def _tile_tokens(config: Any) -> int | None:
    """Visual tokens of one tile of a square vision tower, after any pixel shuffle."""
    vision_config = getattr(config, "vision_config", None)
    image_size = _side(getattr(vision_config, "image_size", None))
    patch_size = _side(getattr(vision_config, "patch_size", None))
    if image_size is None or patch_size is None:
        return None
    tokens_per_side = image_size // patch_size * _shuffle_ratio(config)
    return round(tokens_per_side**2) or None


def _side(size: Any) -> int | None:
    """The side of a size that is a number or a pair (height, width); None for anything else."""
    if isinstance(size, (list, tuple)):
        size = size[0]
    return size if isinstance(size, int) else None


def _shuffle_ratio(config: Any) -> float:
    """Factor by which a pixel shuffle scales height and width; 1 where there is none."""
    ratio = getattr(config, "downsample_ratio", None)
    if ratio:
        return float(ratio)
    factor = getattr(config, "scale_factor", None)
    if factor:
        return 1 / float(factor)
    return 1.0


def _token_counts(encoded: Any) -> tuple[int, ...]:
    """Tokens of each picture or video, from features ``[n, D]`` of each; empty if not separated."""
    features = getattr(encoded, "pooler_output", None)
    if not isinstance(features, Tensor):
        return tuple(len(part) for part in features or ())
    if features.ndim != 3:
        return ()
    return (features.shape[1],) * len(features)


def _newline_embedding(model: Any) -> Tensor | None:
    """The embedding after each row of a picture, ``[D]``; None if absent or offloaded."""
    base_model = getattr(model, "base_model", model)
    newline = getattr(base_model, "image_newline", None)
    if not isinstance(newline, Tensor) or newline.is_meta:
        return None
    return newline


def cells(
    visual: Tensor,
    position_ids: Tensor,
    layout: GridLayout = UNKNOWN,
    newlines: Tensor | None = None,
) -> Tensor:
    """The (t, h, w) cell of every visual token, int64 ``[B, L, 3]``; `NO_CELL` at text.

    `t` counts frames, pictures and tiles from the start of the row; the overview and the details of
    a picture count as two. `h` and `w` count from the top left of each.

    Args:
        visual: which tokens represent pixels, bool ``[B, L]``.
        position_ids: int64 ``[B, L]``, or ``[axes, B, L]`` under M-RoPE (the last three axes are
            time, height and width).
        newlines: which tokens end a row of a picture, bool ``[B, L]``.
    """
    axes = None
    if position_ids.ndim == 3 and position_ids.shape[0] >= 3:
        axes = position_ids[-3:].cpu()
    if newlines is None:
        newlines = torch.zeros(visual.shape, dtype=torch.bool)
    newlines = newlines.cpu()
    grids = torch.empty((*visual.shape, 3), dtype=torch.long)
    for row, parts in enumerate(_number_parts(visual.cpu(), layout)):
        row_axes = None if axes is None else axes[:, row]
        grids[row] = _row_cells(parts, row_axes, newlines[row], layout)
    return grids.to(visual.device)


def _row_cells(parts: Tensor, axes: Tensor | None, newlines: Tensor, layout: GridLayout) -> Tensor:
    """Cells of one row, int64 ``[L, 3]``, from its parts int64 ``[L]`` (`_number_parts`), M-RoPE
    axes int64 ``[3, L]`` or None, and the tokens that end a row of a picture, bool ``[L]``."""
    grid = torch.full((len(parts), 3), NO_CELL)
    time = 0
    for run in _runs(parts):
        if axes is not None and _differ(axes[:, run]):
            run_grid = _mrope_cells(axes[:, run])
        elif parts[run.start] < 0:
            run_grid = _raster_cells(run.stop - run.start, layout.num_frames, layout.tile_tokens)
        else:
            run_grid = _picture_cells(newlines[run], layout.tile_tokens)
        run_grid[:, 0] += time
        time = int(run_grid[-1, 0]) + 1
        grid[run] = run_grid
    return grid


def _number_parts(visual: Tensor, layout: GridLayout) -> Tensor:
    """Each token's part, int64 ``[B, L]``: pictures 1, 2, ..., videos -1, -2, ..., text 0."""
    num_visual = int(visual.sum())
    is_video = torch.zeros(num_visual, dtype=torch.bool)
    if layout.is_video is not None:
        is_video = layout.is_video.cpu()[:num_visual]
    is_picture = ~is_video
    numbers = torch.zeros(num_visual, dtype=torch.long)
    numbers[is_picture] = _repeat_numbers(layout.picture_tokens, int(is_picture.sum()))
    numbers[is_video] = -_repeat_numbers(layout.video_tokens, int(is_video.sum()))
    parts = torch.zeros(visual.shape, dtype=torch.long)
    parts[visual] = numbers
    return parts


def _repeat_numbers(token_counts: tuple[int, ...], num_tokens: int) -> Tensor:
    """Each token's part, int64 ``[num_tokens]``, from 1; all 1 if the counts do not add up."""
    if sum(token_counts) != num_tokens:
        return torch.ones(num_tokens, dtype=torch.long)
    numbers = torch.arange(1, len(token_counts) + 1)
    return numbers.repeat_interleave(torch.tensor(token_counts, dtype=torch.long))


def _runs(parts: Tensor) -> Iterator[slice]:
    edges = pad(parts, (1, 1)).diff().nonzero()[:, 0].tolist()
    for start, stop in pairwise(edges):
        if parts[start]:
            yield slice(start, stop)


def _differ(axes: Tensor) -> bool:
    """Whether the M-RoPE axes ``[3, count]`` of a run are not all the same."""
    return bool((axes != axes[0]).any())


def _mrope_cells(axes: Tensor) -> Tensor:
    """Cells, int64 ``[count, 3]``: M-RoPE positions ``[3, count]`` of a run without their gaps."""
    return torch.stack([torch.unique(axis, return_inverse=True)[1] for axis in axes], -1)


def _picture_cells(newlines: Tensor, tile_tokens: int | None) -> Tensor:
    """Cells of a picture's tokens, int64 ``[count, 3]``; `newlines` is bool ``[count]``.

    The first tile is an overview of the picture, followed by a grid of details with a newline after
    each row. Without newlines there, or with newlines in the tile, the cells are a plain raster.
    """
    count = len(newlines)
    if not tile_tokens or not newlines[tile_tokens:].any() or newlines[:tile_tokens].any():
        return _raster_cells(count, None, tile_tokens)
    index = torch.arange(count)
    detail_newlines = newlines[tile_tokens:]
    row = detail_newlines.cumsum(0)
    row_starts = pad(detail_newlines.nonzero()[:, 0] + 1, (1, 0))
    column = index[: count - tile_tokens] - row_starts[row]
    details = torch.stack([torch.ones_like(row), row, column], -1)
    grid = torch.cat([_raster_cells(tile_tokens, None, tile_tokens), details])
    # A newline has the cell of the last token before it that is not a newline.
    source = torch.where(newlines, 0, index).cummax(0).values
    return grid[source]


def _raster_cells(count: int, num_frames: int | None, tile_tokens: int | None) -> Tensor:
    """Cells of a run in raster order, int64 ``[count, 3]``: `num_frames` frames, else tiles of
    `tile_tokens`, else one picture; each as wide as the smallest square that holds it."""
    if num_frames and num_frames <= count:
        frame_tokens = count // num_frames
    elif tile_tokens and tile_tokens <= count:
        frame_tokens = tile_tokens
    else:
        frame_tokens = count
    width = isqrt(frame_tokens - 1) + 1  # the square root, rounded up
    last = count // frame_tokens * frame_tokens - 1
    index = torch.arange(count).clamp_max(last)  # tokens that fill no frame get the last cell
    place = index % frame_tokens
    return torch.stack([index // frame_tokens, place // width, place % width], -1)
