"""Decoded frames and pictures: arrays, tensors, lists of images."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from PIL import Image

from draftlens.core.errors import ConfigError
from draftlens.media.files import SUFFIXES, is_url
from draftlens.media.image import load_image
from draftlens.media.limits import Limits, check_pixels, format_bytes, over_limit, refusal
from draftlens.media.pixels import Pixels, as_array, is_array
from draftlens.media.video import Video

NAME = "the frames"
"""Used as the path in messages."""

DEFAULT_FPS = 1.0
"""Frames per second of frames without a rate."""


def is_given(source: Any) -> bool:
    return isinstance(source, (Video, list, tuple)) or is_array(source)


def is_picture(source: Any) -> bool:
    """Whether a value has a type that `load_image` takes; it may be unreadable all the same."""
    return _is_path(source) or isinstance(source, Image.Image) or is_array(source)


def is_clip(source: Any) -> bool:
    """Whether a value is the path or address of a clip, or its frames."""
    if isinstance(source, (list, tuple)):
        return all(map(is_picture, source))
    return _is_path(source) or is_given(source)


def _is_path(source: Any) -> bool:
    return isinstance(source, PathLike) or (isinstance(source, str) and source != "")


def kind_of(media: Any) -> str:
    """Whether media are a `video` or an `image`; a file is an image by its suffix only."""
    if isinstance(media, (str, PathLike)):
        name = str(os.fspath(media))
        path = re.split("[?#]", name)[0] if is_url(name) else name
        return "image" if path.lower().endswith(SUFFIXES["image"]) else "video"
    if is_array(media):
        return "video" if media.ndim == 4 else "image"
    return "video" if is_given(media) else "image"


def video_of(
    frames: Any,
    fps: float | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Video:
    """A clip from decoded frames, all of which are used.

    Args:
        frames: uint8 ``[T, H, W, 3]`` or ``[T, 3, H, W]``, an array or a tensor; a list of images
            of one size, each as for `load_image`; or a `Video`, which is returned as it is.
        fps: frames per second; 1 by default.
    """
    if isinstance(frames, Video):
        return frames
    rate = DEFAULT_FPS if fps is None else fps
    if not rate > 0:
        raise ConfigError(f"fps must be a positive number, not {rate!r}")
    if isinstance(frames, (list, tuple)):
        pixels = _stacked(frames, limits)
    else:
        pixels = _checked(as_array(frames), limits)
    count = len(pixels)
    return Video(
        path=NAME,
        frames=pixels,
        timestamps=tuple(index / rate for index in range(count)),
        frame_indices=tuple(range(count)),
        fps=float(rate),
        total_frames=count,
        duration=count / rate,
    )


def _stacked(frames: Sequence[Any], limits: Limits) -> Pixels:
    if not frames:
        raise refusal(NAME, "there are none")
    pictures = [np.asarray(load_image(frame, limits=limits)) for frame in frames]
    sizes = {picture.shape for picture in pictures}
    if len(sizes) > 1:
        (height, width, _), (other_height, other_width, _) = sorted(sizes)[:2]
        raise refusal(
            NAME,
            f"they differ in size: {width}x{height} and {other_width}x{other_height} pixels",
        )
    height, width = pictures[0].shape[:2]
    _check_size(len(pictures), height, width, limits)
    return np.stack(pictures)


def _checked(array: np.ndarray[Any, Any], limits: Limits) -> Pixels:
    has_frames = array.ndim == 4 and array.size > 0
    if has_frames and array.shape[-1] != 3 and array.shape[1] == 3:
        array = array.transpose(0, 2, 3, 1)
    if not has_frames or array.shape[-1] != 3:
        raise refusal(
            NAME, f"their shape is {list(array.shape)}, but [T, H, W, 3] or [T, 3, H, W] is wanted"
        )
    if array.dtype != np.uint8:
        raise refusal(NAME, f"their dtype is {array.dtype}, but uint8 is wanted")
    count, height, width, _ = array.shape
    _check_size(count, height, width, limits)
    return np.ascontiguousarray(array)


def _check_size(count: int, height: int, width: int, limits: Limits) -> None:
    check_pixels(NAME, width, height, limits)
    size = count * height * width * 3
    if size > limits.max_output_bytes:
        figure = f"{count} frames of {width}x{height} pixels need {format_bytes(size)}"
        raise over_limit(NAME, figure, format_bytes(limits.max_output_bytes), "max_output_bytes")
