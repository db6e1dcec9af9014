"""Decoded pictures -> RGB arrays that stand upright."""

from __future__ import annotations

from typing import Any, cast

import av
import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # [H, W, 3]


class Canvas:
    """Turns decoded frames into RGB arrays that all have the size of the first one, as a model's
    batch needs.

    Rare clips change their size or orientation midway; their later frames are scaled to the first
    one's size.
    """

    def __init__(self) -> None:
        self._shape: tuple[int, int] | None = None  # (height, width) after turning

    def draw(self, frame: av.VideoFrame) -> Pixels:
        """uint8 [H, W, 3]: turned upright as the clip's display matrix says, transparency laid on
        white."""
        matrix = display_matrix(frame)
        turned = swaps_axes(matrix)
        if self._shape is None:
            self._shape = (frame.width, frame.height) if turned else (frame.height, frame.width)
        width, height = self._shape if turned else self._shape[::-1]
        has_alpha = any(component.is_alpha for component in frame.format.components)
        pixels = cast(
            Pixels,
            frame.to_ndarray(format="rgba" if has_alpha else "rgb24", width=width, height=height),
        )
        return upright(on_white(pixels) if has_alpha else pixels, matrix)


def on_white(rgba: Pixels) -> Pixels:
    """uint8 [H, W, 4] -> uint8 [H, W, 3]: what one sees with a white sheet behind it."""
    alpha = rgba[..., 3:].astype(np.uint32)
    color = rgba[..., :3].astype(np.uint32)
    return ((color * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


Matrix = tuple[
    int, int, int, int
]  # a, b, c, d of x' = a x + c y, y' = b x + d y, with y growing downwards
_UPRIGHT: Matrix = (1, 0, 0, 1)


def display_matrix(frame: av.VideoFrame) -> Matrix:
    """How the frame is meant to be turned and mirrored; phones film sideways and leave the turning
    to the player.

    `frame.rotation` would give the angle alone; mirrored clips (front cameras) need the matrix.
    """
    raw = cast("dict[str, Any]", frame.side_data).get("DISPLAYMATRIX")
    if raw is None:
        return _UPRIGHT
    matrix = np.frombuffer(raw, dtype=np.int32)
    return int(matrix[0]), int(matrix[1]), int(matrix[3]), int(matrix[4])


def swaps_axes(matrix: Matrix) -> bool:
    """Whether the matrix is nearer to a quarter turn (width becomes height) than to none or a half
    one."""
    a, b, c, d = matrix
    return abs(b) + abs(c) > abs(a) + abs(d)


def upright(pixels: Pixels, matrix: Matrix) -> Pixels:
    """Apply the nearest of the eight quarter turns and mirrorings to uint8 [H, W, 3]."""
    a, b, c, d = matrix
    if swaps_axes(matrix):
        pixels = pixels.transpose(1, 0, 2)
        a, d = c, b  # across the diagonal, x' follows y by c, and y' follows x by b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
