"""Which picture lies under each frame or tile of a prompt, as the model was shown it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from draftlens.media import Video
from draftlens.media.conversation import Conversation

SAME = 16.0
"""Mean difference of two pictures, of 255, up to which one is the other resized."""


@dataclass(frozen=True)
class Picture:
    """What is known of one frame, picture or tile.

    Args:
        name: such as `frame 3`.
        when: of a frame its time, such as `0.4 s`; else empty.
        image: upright RGB; None where the place of the cells is not known.
    """

    name: str
    when: str = ""
    image: Image.Image | None = None


def pictures(
    chat: Conversation,
    inputs: Mapping[str, Any],
    processor: Any,
    times: Sequence[int],
    known: Mapping[int, int],
) -> list[Picture]:
    """The picture under each of the frames, pictures or tiles that a prompt's cells name, in their
    order.

    Args:
        chat: a clip or pictures, read.
        inputs: what the processor made of it.
        processor: it knows how pixels were normalised.
        times: frames, pictures or tiles in each stretch of visual tokens.
        known: which picture is shown whole at which of them, as far as that is known
            (`views.wholes_of`).
    """
    count = sum(times)
    tiles = _tiles(inputs, processor)
    if len(chat.videos) == 1 and not chat.images:
        return _of_video(chat.videos[0], tiles, count)
    if chat.videos or not chat.images:
        return [
            Picture(f"view {number}") for number in range(1, count + 1)
        ]  # which is which is not known
    wholes = _wholes(inputs, tiles, len(chat.images))
    found: list[Image.Image | None]
    if count == len(chat.images):
        found = [_best(image, tile) for image, tile in zip(chat.images, wholes, strict=True)]
        return [Picture(f"picture {number}", image=image) for number, image in enumerate(found, 1)]
    names = _tile_names(times, len(chat.images))
    if "image_sizes" not in inputs:
        found = [*tiles] if len(tiles) == count else [None] * count
        return [Picture(name, image=tile) for name, tile in zip(names, found, strict=True)]
    return _overviews(chat.images, wholes, names, known)


def _of_video(video: Video, tiles: Sequence[Image.Image], count: int) -> list[Picture]:
    """Frames, or groups of frames that share their cells, of which the first is shown."""
    total = len(video.frames)
    group = -(-total // count)
    if -(-total // group) != count:
        known = len(tiles) == count
        return [
            Picture(f"view {index + 1}", image=tiles[index] if known else None)
            for index in range(count)
        ]
    found = []
    digits = 1 if min(np.diff(video.timestamps), default=1) >= 0.1 else 2
    for first in range(0, total, group):
        covered = range(first, min(first + group, total))
        numbers = ", ".join(str(number + 1) for number in covered)
        tile = tiles[first] if len(tiles) == total else None
        image = _best(Image.fromarray(video.frames[first]), tile)
        name = f"frame{'s' if len(covered) > 1 else ''} {numbers}"
        found.append(Picture(name, f"{video.timestamps[first]:.{digits}f} s", image))
    return found


def _overviews(
    images: Sequence[Image.Image],
    wholes: Sequence[Image.Image | None],
    names: Sequence[str],
    known: Mapping[int, int],
) -> list[Picture]:
    """Pictures shown whole and, behind that, in detail."""
    found = []
    for time, name in enumerate(names):
        number = known.get(time)
        if number is None:
            found.append(Picture(name))
            continue
        part = "detail" if known.get(time - 1) == number else "overview"
        image = _best(images[number], wholes[number] if part == "overview" else None)
        found.append(
            Picture(f"{part} of picture {number + 1}" if len(images) > 1 else part, image=image)
        )
    return found


def _tile_names(times: Sequence[int], pictures: int) -> list[str]:
    if len(times) != pictures:
        return [f"tile {number}" for number in range(1, sum(times) + 1)]
    of = [f" of picture {number}" if pictures > 1 else "" for number in range(1, pictures + 1)]
    return [
        f"tile {tile}{name}"
        for name, run in zip(of, times, strict=True)
        for tile in range(1, run + 1)
    ]


def _wholes(
    inputs: Mapping[str, Any], tiles: Sequence[Image.Image], count: int
) -> list[Image.Image | None]:
    """For each of `count` pictures the tile that shows it whole, where that is known."""
    if "image_sizes" in inputs and len(tiles) % count == 0:
        return list(tiles[:: len(tiles) // count])
    return list(tiles) if len(tiles) == count else [None] * count


def _tiles(inputs: Mapping[str, Any], processor: Any) -> list[Image.Image]:
    """What the vision tower was shown, one picture for each tile or frame; empty where patches are
    flattened."""
    for key, part in (
        ("pixel_values_videos", "video_processor"),
        ("pixel_values", "image_processor"),
    ):
        pixels = inputs.get(key)
        if isinstance(pixels, Tensor) and pixels.ndim >= 4 and pixels.shape[-3] == 3:
            flat = (
                pixels.detach()
                .float()
                .cpu()
                .reshape(-1, *pixels.shape[-3:])
                .permute(0, 2, 3, 1)
                .numpy()
            )
            tools = getattr(processor, part, None)
            mean, std = (getattr(tools, name, None) for name in ("image_mean", "image_std"))
            if mean is not None and std is not None:
                flat = flat * np.asarray(std, np.float32) + np.asarray(mean, np.float32)
            return [
                Image.fromarray(tile) for tile in (flat.clip(0, 1) * 255).round().astype(np.uint8)
            ]
    return []


def _best(source: Image.Image, tile: Image.Image | None) -> Image.Image:
    """The source, which is sharper, if the model saw all of it; what it saw otherwise (cropped or
    padded)."""
    if tile is None:
        return source
    resized = np.asarray(source.resize(tile.size, Image.Resampling.BICUBIC), np.float32)
    return source if float(np.abs(resized - np.asarray(tile, np.float32)).mean()) <= SAME else tile
