"""Scenes as pixels: signed distances to each outline, so that edges are smooth at every size."""

import numpy as np
from numpy.typing import NDArray

from draftlens.train.world.scene import Scene, Thing, pose

PAINT = {
    "red": (224, 49, 49),
    "green": (47, 158, 68),
    "blue": (51, 119, 242),
    "yellow": (250, 208, 44),
    "purple": (156, 54, 200),
    "orange": (247, 127, 0),
    "black": (16, 16, 18),
    "navy": (22, 30, 84),
    "grey": (134, 142, 150),
    "white": (244, 244, 240),
}

Floats = NDArray[np.float32]


def frame_times(num_frames: int) -> list[float]:
    """The midpoints of ``num_frames`` equal parts of the clip, each in 0..1: where the product samples a clip too."""
    return [(i + 0.5) / num_frames for i in range(num_frames)]


def render(scene: Scene, num_frames: int, size: int) -> NDArray[np.uint8]:
    """Frames ``[T, size, size, 3]`` uint8 RGB at :func:`frame_times`."""
    frames = np.empty((num_frames, size, size, 3), dtype=np.float32)
    frames[:] = PAINT[scene.background]
    for thing in scene.things:
        colour = np.asarray(PAINT[thing.colour], dtype=np.float32)
        for frame, time in zip(frames, frame_times(num_frames), strict=True):
            _paint(frame, thing, colour, pose(thing, time))
    return (frames + 0.5).astype(np.uint8)


def render_still(scene: Scene, size: int) -> NDArray[np.uint8]:
    """One picture ``[size, size, 3]`` uint8 RGB."""
    picture: NDArray[np.uint8] = render(scene, 1, size)[0]
    return picture


def _paint(frame: Floats, thing: Thing, colour: Floats, where: tuple[float, float, float]) -> None:
    """Blends one thing into a frame ``[S, S, 3]`` in place; only its bounding box is computed."""
    size = frame.shape[0]
    x, y, radius = (v * size for v in where)
    reach = 1.1 * radius + 2
    left, right = max(int(x - reach), 0), min(int(x + reach) + 1, size)
    top, bottom = max(int(y - reach), 0), min(int(y + reach) + 1, size)
    if left >= right or top >= bottom:
        return
    dx = (np.arange(left, right, dtype=np.float32) + 0.5 - x)[None, :]
    dy = (np.arange(top, bottom, dtype=np.float32) + 0.5 - y)[:, None]
    cover = np.clip(0.5 - _distance(thing.shape, dx, dy, radius), 0, 1)[..., None]
    box = frame[top:bottom, left:right]
    box += cover * (colour - box)


def _distance(shape: str, x: Floats, y: Floats, r: float) -> Floats:
    """Distance in pixels to the outline, negative inside; ``x`` is ``[1, W]``, ``y`` is ``[H, 1]``, centre at 0."""
    if shape == "circle":
        return np.asarray(np.sqrt(x * x + y * y) - r)
    if shape == "ring":
        return np.asarray(np.abs(np.sqrt(x * x + y * y) - 0.72 * r) - 0.28 * r)
    ax, ay = np.abs(x), np.abs(y)
    if shape == "square":
        return np.asarray(np.maximum(ax, ay) - 0.86 * r)
    if shape == "cross":
        across = np.maximum(ax - r, ay - 0.33 * r)
        upright = np.maximum(ax - 0.33 * r, ay - r)
        return np.asarray(np.minimum(across, upright))
    low = y - 0.3 * r  # the triangle's middle of mass lies below the middle of its box
    return np.asarray(np.maximum(low, 0.866 * ax - 0.5 * low) - 0.62 * r)
