"""Arrays of numpy and tensors of torch as pixels, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import av
import numpy as np
from PIL import Image


def is_array(source: Any) -> bool:
    """Whether a value is an array of numpy or a tensor of torch, or converts to one."""
    return hasattr(source, "__array__") and not isinstance(source, Image.Image)


def as_array(source: Any) -> np.ndarray[Any, Any]:
    """The values of an array or tensor, on any device."""
    on_cpu = source.detach().cpu() if hasattr(source, "detach") else source
    return np.asarray(on_cpu)


def as_picture(source: Any) -> np.ndarray[Any, Any]:
    """A picture with its channels last, from uint8 ``[H, W]``, ``[H, W, C]``, or a tensor of torch
    ``[C, H, W]``."""
    array = as_array(source)
    is_tensor = hasattr(source, "detach")
    if is_tensor and array.ndim == 3 and array.shape[0] in (1, 3, 4):
        return array.transpose(1, 2, 0)
    return array


Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # [H, W, 3]


@dataclass(frozen=True)
class DisplayMatrix:
    """Rotation and mirroring of a frame for display.

    A point (x, y) of the frame is displayed at x' = a x + c y, y' = b x + d y, with y pointing
    down.
    """

    a: int
    b: int
    c: int
    d: int

    @property
    def swaps_axes(self) -> bool:
        """Whether the matrix is closer to a quarter turn, which exchanges width and height, than to
        none or a half turn."""
        return abs(self.b) + abs(self.c) > abs(self.a) + abs(self.d)


_IDENTITY = DisplayMatrix(1, 0, 0, 1)


class PixelCanvas:
    """Converts the frames of a clip to RGB arrays that all have the size of the first frame.

    A few clips change their size or orientation midway; a model's batch needs frames of one size.
    """

    def __init__(self) -> None:
        self._size: tuple[int, int] | None = None  # (height, width), upright

    def draw(self, frame: av.VideoFrame) -> Pixels:
        """A frame as an upright array, uint8 [H, W, 3], RGB, with transparency on white."""
        matrix = display_matrix(frame)
        if self._size is None:
            self._size = _turn_size((frame.height, frame.width), matrix)
        height, width = _turn_size(self._size, matrix)
        has_alpha = any(component.is_alpha for component in frame.format.components)
        pixel_format = "rgba" if has_alpha else "rgb24"
        array = frame.to_ndarray(format=pixel_format, width=width, height=height)
        pixels = cast(Pixels, array)
        if has_alpha:
            pixels = on_white(pixels)
        return upright(pixels, matrix)


def on_white(rgba: Pixels) -> Pixels:
    """Blend uint8 [H, W, 4] with a white background, giving uint8 [H, W, 3]."""
    alpha = rgba[..., 3:].astype(np.uint32)
    color = rgba[..., :3].astype(np.uint32)
    return ((color * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def display_matrix(frame: av.VideoFrame) -> DisplayMatrix:
    """The display matrix of a frame, the identity if it has none. `frame.rotation` alone does not
    suffice: clips of front cameras are mirrored, too."""
    raw = cast("dict[str, Any]", frame.side_data).get("DISPLAYMATRIX")
    if raw is None:
        return _IDENTITY
    matrix = np.frombuffer(raw, dtype=np.int32)
    return DisplayMatrix(int(matrix[0]), int(matrix[1]), int(matrix[3]), int(matrix[4]))


def upright(pixels: Pixels, matrix: DisplayMatrix) -> Pixels:
    """Apply the nearest of the eight quarter turns and mirrorings to uint8 [H, W, 3]."""
    x_direction = matrix.a
    y_direction = matrix.d
    if matrix.swaps_axes:
        pixels = pixels.transpose(1, 0, 2)
        # After the transposition, x' depends on y through c, and y' on x through b.
        x_direction = matrix.c
        y_direction = matrix.b
    if y_direction < 0:
        pixels = pixels[::-1]
    if x_direction < 0:
        pixels = pixels[:, ::-1]
    return pixels


def _turn_size(size: tuple[int, int], matrix: DisplayMatrix) -> tuple[int, int]:
    """(height, width) after the matrix is applied, or before it, given the size after it."""
    height, width = size
    if matrix.swaps_axes:
        return width, height
    return height, width
