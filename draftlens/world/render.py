"""Scenes as pixels: signed distances to each outline, so that edges are smooth at every size.

Shapes: T frames, S pixels a side, b pixels a side of the box that holds a thing.
"""

import numpy as np
from numpy.typing import NDArray

from draftlens.world.glyphs import mask
from draftlens.world.motion import RADIUS, SPREAD, pan, pose
from draftlens.world.scene import Scene, Shot, Text, Thing

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
INK = {
    "white": (255, 255, 255),
    "yellow": (255, 220, 40),
    "green": (80, 230, 90),
    "pink": (255, 110, 190),
}
STRIP = 0.8125  # where the strip that carries text begins
CARD = (252, 226, 232)
PATTERN_STEP = 0.22  # picture units from one check or line to the next but one
PATTERN_DEPTH = 26.0  # how much lighter or darker, of 255

Floats = NDArray[np.float32]


def frame_times(num_frames: int) -> list[float]:
    """The midpoints of ``num_frames`` equal parts of the clip, each in 0..1: where the product
    samples a clip too."""
    return [(i + 0.5) / num_frames for i in range(num_frames)]


def render(scene: Scene, num_frames: int, size: int) -> NDArray[np.uint8]:
    """Frames ``[T, size, size, 3]`` uint8 RGB at :func:`frame_times`."""
    return render_at(scene, frame_times(num_frames), size)


def render_still(scene: Scene, size: int) -> NDArray[np.uint8]:
    """One picture ``[size, size, 3]`` uint8 RGB."""
    picture: NDArray[np.uint8] = render_at(scene, [0.5], size)[0]
    return picture


def render_at(scene: Scene, times: list[float], size: int) -> NDArray[np.uint8]:
    """Frames ``[T, size, size, 3]`` uint8 RGB at these clip times, which must rise."""
    frames = np.empty((len(times), size, size, 3), dtype=np.float32)
    clock = np.asarray(times)
    for shot in scene.shots:
        inside = (clock >= shot.start) & ((clock < shot.end) | (shot.end >= 1))
        if inside.any():
            first, last = int(inside.argmax()), int(inside.argmax() + inside.sum())
            length = shot.end - shot.start
            _paint_shot(
                frames[first:last], shot, [(t - shot.start) / length for t in times[first:last]]
            )
    for text in scene.texts:
        _paint_text(frames, text, clock)
    return (frames + 0.5).astype(np.uint8)


def _paint_shot(frames: Floats, shot: Shot, times: list[float]) -> None:
    frames[:] = PAINT[shot.background]
    if shot.pattern != "plain":
        frames += _pattern(shot, times, frames.shape[1])[..., None]
    for thing in shot.things:
        _paint_thing(frames, thing, shot, times)


def _pattern(shot: Shot, times: list[float], size: int) -> Floats:
    """What the pattern adds to the background, ``[T, S, S]``; it moves with the camera."""
    at = (np.arange(size) + 0.5) / size
    columns = np.floor(
        2 * (at[None, :] - np.asarray([pan(shot, t) for t in times])[:, None]) / PATTERN_STEP
    )
    rows = np.floor(2 * at / PATTERN_STEP) if shot.pattern == "checked" else np.zeros(size)
    odd = (columns[:, None, :] + rows[None, :, None]) % 2
    sign = -1 if shot.background in ("white", "grey") else 1
    return np.asarray(sign * PATTERN_DEPTH * odd, dtype=np.float32)


def _paint_thing(frames: Floats, thing: Thing, shot: Shot, times: list[float]) -> None:
    """Blends one thing into ``[T, S, S, 3]`` in place; only a box around it is computed, for all
    frames at once."""
    size = frames.shape[1]
    poses = np.asarray([pose(thing, shot, t) for t in times], dtype=np.float32) * size
    reach = 1.1 * (SPREAD[1] if thing.changes_size else RADIUS[thing.size]) * size + 2
    low = np.floor(poses[:, :2] - reach).astype(
        int
    )  # [T, (x, y)] the box's corner, perhaps outside the frame
    steps = np.arange(int(2 * reach) + 2, dtype=np.float32) + 0.5
    x = (low[:, :1] + steps - poses[:, :1])[:, None, :]
    y = (low[:, 1:] + steps - poses[:, 1:2])[:, :, None]
    r = poses[:, 2, None, None]
    cover = np.clip(0.5 - _distance(thing.shape, x, y, r), 0, 1)[..., None]
    colour = _textured(thing, x / r, y / r, (1.5 / r))
    for frame, (left, top), part, paint in zip(frames, low, cover, colour, strict=True):
        a, b = max(left, 0), min(left + len(steps), size)
        c, d = max(top, 0), min(top + len(steps), size)
        if a < b and c < d:
            here = slice(c - top, d - top), slice(a - left, b - left)
            box = frame[c:d, a:b]
            box += part[here] * (paint[here] - box)


def _textured(thing: Thing, x: Floats, y: Floats, edge: Floats) -> Floats:
    """Colours ``[T, b, b, 3]`` at points in radii from the thing's centre; ``edge`` is about a
    pixel, in radii."""
    plain = np.broadcast_to(
        np.asarray(PAINT[thing.colour], dtype=np.float32), (*np.broadcast(x, y).shape, 3)
    )
    if thing.texture == "plain":
        return plain
    if thing.texture == "striped":  # dark upright stripes
        wave = np.abs((x / 0.62) % 1 - 0.5) * 0.62 - 0.155
        share = np.clip(0.5 - wave / edge, 0, 1) + 0 * y
        return np.asarray(plain * (1 - 0.72 * share[..., None]), dtype=np.float32)
    near = np.hypot((x / 0.6) % 1 - 0.5, (y / 0.6) % 1 - 0.5) * 0.6 - 0.2  # light spots
    share = np.clip(0.5 - near / edge, 0, 1)[..., None]
    return np.asarray(plain + 0.85 * share * (255 - plain), dtype=np.float32)


def _distance(shape: str, x: Floats, y: Floats, r: Floats) -> Floats:
    """Distance in pixels to the outline, negative inside; ``x`` is ``[T, 1, b]``, ``y`` ``[T, b,
    1]``, centre at 0."""
    if shape == "circle":
        return np.asarray(np.sqrt(x * x + y * y) - r)
    if shape == "ring":
        return np.asarray(np.abs(np.sqrt(x * x + y * y) - 0.7 * r) - 0.3 * r)
    ax, ay = np.abs(x), np.abs(y)
    if shape == "square":
        return np.asarray(np.maximum(ax, ay) - 0.86 * r)
    if shape == "cross":
        across = np.maximum(ax - r, ay - 0.35 * r)
        upright = np.maximum(ax - 0.35 * r, ay - r)
        return np.asarray(np.minimum(across, upright))
    low = y - 0.3 * r  # the triangle's middle of mass lies below the middle of its box
    return np.asarray(np.maximum(low, 0.866 * ax - 0.5 * low) - 0.62 * r)


def _paint_text(frames: Floats, text: Text, times: NDArray[np.float64]) -> None:
    """Writes the text's strip or card into the frames ``[T, S, S, 3]`` of its time, in place."""
    shown = np.flatnonzero((times >= text.start) & ((times < text.end) | (text.end >= 1)))
    size = frames.shape[1]
    top = round(STRIP * size)
    cover = mask(text.value, text.font, size, size - top)[..., None]
    secret = text.kind == "secret"
    paper = np.asarray(
        CARD if text.carrier == "card" else (250, 250, 250) if secret else (0, 0, 0),
        dtype=np.float32,
    )
    ink = np.asarray((10, 10, 10) if secret else INK[text.colour], dtype=np.float32)
    if text.carrier == "card":
        frames[shown] = paper
    frames[shown, top:] = paper + cover * (ink - paper)
