"""The picture under each frame, picture or tile of a prompt, as the model reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from draftlens.media import Video
from draftlens.media.conversation import Conversation

MAX_DIFFERENCE = 16.0
"""Largest mean difference, of 255, of two pictures that count as one picture in two sizes."""

_PIXEL_INPUTS = (
    ("pixel_values_videos", "video_processor"),
    ("pixel_values", "image_processor"),
)


@dataclass(frozen=True)
class Picture:
    """One frame, picture or tile.

    Args:
        name: for example `frame 3`.
        when: the time of a frame, for example `0.4 s`; empty for anything else.
        image: upright RGB; None where the place of the cells is not known.
    """

    name: str
    when: str = ""
    image: Image.Image | None = None


def locate_pictures(
    chat: Conversation,
    inputs: Mapping[str, Any],
    processor: Any,
    views_per_run: Sequence[int],
    whole_pictures: Mapping[int, int],
) -> list[Picture]:
    """Return the picture under each frame, picture or tile of a prompt, in their order.

    Args:
        processor: gives the mean and standard deviation with which pixels were normalised.
        whole_pictures: view index to picture index, for views that show a picture whole
            (`views.whole_pictures`).
    """
    count = sum(views_per_run)
    tiles = _tiles(inputs, processor)
    if len(chat.videos) == 1 and not chat.images:
        return _video_frames(chat.videos[0], tiles, count)
    if chat.videos or not chat.images:
        # It is not known which of several videos and images a view belongs to.
        return [Picture(name) for name in _view_names(count)]
    overviews = _overview_tiles(inputs, tiles, len(chat.images))
    if count == len(chat.images):
        return _single_pictures(chat.images, overviews)
    names = _tile_names(views_per_run, len(chat.images))
    if "image_sizes" in inputs:
        return _overviews_and_details(chat.images, overviews, names, whole_pictures)
    return _name_tiles(names, tiles)


def _video_frames(video: Video, tiles: Sequence[Image.Image], count: int) -> list[Picture]:
    """`count` pictures of a video: frames, or groups of frames that share their cells.

    The first frame of a group is shown.
    """
    num_frames = len(video.frames)
    group_size = -(-num_frames // count)
    if -(-num_frames // group_size) != count:
        return _name_tiles(_view_names(count), tiles)
    digits = 1 if min(np.diff(video.timestamps), default=1) >= 0.1 else 2
    pictures = []
    for first in range(0, num_frames, group_size):
        last = min(first + group_size, num_frames)
        tile = tiles[first] if len(tiles) == num_frames else None
        image = _sharper(Image.fromarray(video.frames[first]), tile)
        seconds = f"{video.timestamps[first]:.{digits}f} s"
        pictures.append(Picture(_frame_name(first, last), seconds, image))
    return pictures


def _frame_name(first: int, last: int) -> str:
    """The name of the frames from index `first` up to, but not including, `last`."""
    numbers = ", ".join(str(index + 1) for index in range(first, last))
    return f"frames {numbers}" if last - first > 1 else f"frame {numbers}"


def _name_tiles(names: Sequence[str], tiles: Sequence[Image.Image]) -> list[Picture]:
    if len(tiles) != len(names):
        return [Picture(name) for name in names]
    return [Picture(name, image=tile) for name, tile in zip(names, tiles, strict=True)]


def _single_pictures(
    images: Sequence[Image.Image], tiles: Sequence[Image.Image | None]
) -> list[Picture]:
    pairs = zip(images, tiles, strict=True)
    return [
        Picture(f"picture {number}", image=_sharper(image, tile))
        for number, (image, tile) in enumerate(pairs, 1)
    ]


def _overviews_and_details(
    images: Sequence[Image.Image],
    overviews: Sequence[Image.Image | None],
    names: Sequence[str],
    whole_pictures: Mapping[int, int],
) -> list[Picture]:
    """Views that show a picture whole and then in detail; others have a name only."""
    pictures = []
    for index, name in enumerate(names):
        number = whole_pictures.get(index)
        if number is None:
            pictures.append(Picture(name))
            continue
        is_detail = whole_pictures.get(index - 1) == number
        part = "detail" if is_detail else "overview"
        label = f"{part} of picture {number + 1}" if len(images) > 1 else part
        image = images[number] if is_detail else _sharper(images[number], overviews[number])
        pictures.append(Picture(label, image=image))
    return pictures


def _view_names(count: int) -> list[str]:
    return [f"view {number}" for number in range(1, count + 1)]


def _tile_names(views_per_run: Sequence[int], num_pictures: int) -> list[str]:
    if len(views_per_run) != num_pictures:
        return [f"tile {number}" for number in range(1, sum(views_per_run) + 1)]
    names = []
    for picture, num_tiles in enumerate(views_per_run, 1):
        suffix = f" of picture {picture}" if num_pictures > 1 else ""
        names += [f"tile {tile}{suffix}" for tile in range(1, num_tiles + 1)]
    return names


def _overview_tiles(
    inputs: Mapping[str, Any], tiles: Sequence[Image.Image], num_pictures: int
) -> list[Image.Image | None]:
    """For each picture the tile that shows it whole; None where that is not known."""
    if "image_sizes" in inputs and len(tiles) % num_pictures == 0:
        return list(tiles[:: len(tiles) // num_pictures])
    if len(tiles) == num_pictures:
        return list(tiles)
    return [None] * num_pictures


def _tiles(inputs: Mapping[str, Any], processor: Any) -> list[Image.Image]:
    """The inputs of the vision encoder as one picture for each tile or frame.

    The list is empty for processors that flatten their patches.
    """
    for key, part in _PIXEL_INPUTS:
        pixels = inputs.get(key)
        if isinstance(pixels, Tensor) and pixels.ndim >= 4 and pixels.shape[-3] == 3:
            return _as_images(pixels, getattr(processor, part, None))
    return []


def _as_images(pixels: Tensor, image_processor: Any) -> list[Image.Image]:
    """Undo the normalisation of pixels ``[..., 3, H, W]``."""
    tiles = pixels.detach().float().cpu().reshape(-1, *pixels.shape[-3:])
    values = tiles.permute(0, 2, 3, 1).numpy()
    mean = getattr(image_processor, "image_mean", None)
    std = getattr(image_processor, "image_std", None)
    if mean is not None and std is not None:
        values = values * np.asarray(std, np.float32) + np.asarray(mean, np.float32)
    rounded = (values.clip(0, 1) * 255).round().astype(np.uint8)
    return [Image.fromarray(tile) for tile in rounded]


def _sharper(source: Image.Image, tile: Image.Image | None) -> Image.Image:
    """The source picture if the tile shows all of it; otherwise the tile (cropped or padded)."""
    if tile is None:
        return source
    resized = np.asarray(source.resize(tile.size, Image.Resampling.BICUBIC), np.float32)
    difference = float(np.abs(resized - np.asarray(tile, np.float32)).mean())
    return source if difference <= MAX_DIFFERENCE else tile
