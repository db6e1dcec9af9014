"""Renders scenes as pixels.

Outlines are signed distances, so that edges are smooth at every size.

Shapes: T frames; S is the side of a frame in pixels; b is the side of the box around a thing, in
pixels.
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
SECRET_INK = (10, 10, 10)
STRIP = 0.8125  # top of the strip that carries text
CARD_PAPER = (252, 226, 232)
SECRET_PAPER = (250, 250, 250)
TEXT_PAPER = (0, 0, 0)
PATTERN_PERIOD = 0.22  # picture units of a pair of a lighter and a darker check or line
PATTERN_DEPTH = 26.0  # how much lighter or darker a check or line is, of 255
STRIPE_PERIOD = 0.62  # in radii
STRIPE_DEPTH = 0.72  # how much darker stripes are
SPOT_PERIOD = 0.6  # in radii
SPOT_RADIUS = 0.2  # in radii
SPOT_DEPTH = 0.85  # how much lighter spots are

Floats = NDArray[np.float32]


def frame_times(num_frames: int) -> list[float]:
    """The midpoints of ``num_frames`` equal parts of the clip, each in 0..1.

    `draftlens.media.load_video` samples a clip at the same times.
    """
    return [(i + 0.5) / num_frames for i in range(num_frames)]


def render(scene: Scene, num_frames: int, size: int) -> NDArray[np.uint8]:
    """Frames ``[num_frames, size, size, 3]`` uint8 RGB at :func:`frame_times`."""
    return render_at(scene, frame_times(num_frames), size)


def render_still(scene: Scene, size: int) -> NDArray[np.uint8]:
    """One picture ``[size, size, 3]`` uint8 RGB."""
    picture: NDArray[np.uint8] = render_at(scene, [0.5], size)[0]
    return picture


def render_at(scene: Scene, times: list[float], size: int) -> NDArray[np.uint8]:
    """Frames ``[T, size, size, 3]`` uint8 RGB at ascending clip times."""
    frames = np.empty((len(times), size, size, 3), dtype=np.float32)
    clock = np.asarray(times)
    for shot in scene.shots:
        visible = _visible_frames(clock, shot.start, shot.end)
        if visible.size:
            first = int(visible[0])
            stop = int(visible[-1]) + 1
            length = shot.end - shot.start
            shot_times = [(time - shot.start) / length for time in times[first:stop]]
            _paint_shot(frames[first:stop], shot, shot_times)
    for text in scene.texts:
        _paint_text(frames, text, _visible_frames(clock, text.start, text.end))
    return (frames + 0.5).astype(np.uint8)


def _visible_frames(clock: NDArray[np.float64], start: float, end: float) -> NDArray[np.intp]:
    """Indices of the times from `start` to before `end`; the end of the clip is included."""
    before_end = (clock < end) | (end >= 1)
    return np.flatnonzero((clock >= start) & before_end)


def _paint_shot(frames: Floats, shot: Shot, times: list[float]) -> None:
    """Paint a shot into its frames ``[T, S, S, 3]``, in place, at these shot times."""
    frames[:] = PAINT[shot.background]
    if shot.pattern != "plain":
        frames += _pattern(shot, times, frames.shape[1])[..., None]
    for thing in shot.things:
        _paint_thing(frames, thing, shot, times)


def _pattern(shot: Shot, times: list[float], size: int) -> Floats:
    """The brightness ``[T, S, S]`` that a pattern adds; the pattern moves with the camera."""
    positions = (np.arange(size) + 0.5) / size
    pans = np.asarray([pan(shot, time) for time in times])
    columns = np.floor(2 * (positions[None, :] - pans[:, None]) / PATTERN_PERIOD)
    rows = np.zeros(size)
    if shot.pattern == "checked":
        rows = np.floor(2 * positions / PATTERN_PERIOD)
    odd = (columns[:, None, :] + rows[None, :, None]) % 2
    sign = -1 if shot.background in ("white", "grey") else 1
    return np.asarray(sign * PATTERN_DEPTH * odd, dtype=np.float32)


def _paint_thing(frames: Floats, thing: Thing, shot: Shot, times: list[float]) -> None:
    """Blend one thing into frames ``[T, S, S, 3]``, in place.

    Only a box around the thing is computed, for all frames at once.
    """
    size = frames.shape[1]
    poses = np.asarray([pose(thing, shot, time) for time in times], dtype=np.float32) * size
    max_radius = SPREAD[1] if thing.changes_size else RADIUS[thing.size]
    reach = 1.1 * max_radius * size + 2
    corners = np.floor(poses[:, :2] - reach).astype(int)  # [T, (x, y)], perhaps outside the frame
    steps = np.arange(int(2 * reach) + 2, dtype=np.float32) + 0.5
    x = (corners[:, :1] + steps - poses[:, :1])[:, None, :]
    y = (corners[:, 1:] + steps - poses[:, 1:2])[:, :, None]
    radius = poses[:, 2, None, None]
    coverage = np.clip(0.5 - _distance(thing.shape, x, y, radius), 0, 1)[..., None]
    colours = _textured(thing, x / radius, y / radius, 1.5 / radius)
    for frame, (left, top), cover, colour in zip(frames, corners, coverage, colours, strict=True):
        _blend(frame, int(left), int(top), cover, colour)


def _blend(frame: Floats, left: int, top: int, coverage: Floats, colour: Floats) -> None:
    """Blend a box into a frame, in place.

    Args:
        frame: ``[S, S, 3]``.
        left: column of the frame at which the box begins, perhaps outside it.
        top: row of the frame at which the box begins, perhaps outside it.
        coverage: ``[b, b, 1]`` in 0..1.
        colour: ``[b, b, 3]``.
    """
    size = frame.shape[0]
    side = coverage.shape[0]
    columns = slice(max(left, 0), min(left + side, size))
    rows = slice(max(top, 0), min(top + side, size))
    if columns.start >= columns.stop or rows.start >= rows.stop:
        return
    box_columns = slice(columns.start - left, columns.stop - left)
    box_rows = slice(rows.start - top, rows.stop - top)
    box = frame[rows, columns]
    box += coverage[box_rows, box_columns] * (colour[box_rows, box_columns] - box)


def _textured(thing: Thing, x: Floats, y: Floats, edge: Floats) -> Floats:
    """The colours of a thing.

    Args:
        thing: the thing.
        x: ``[T, 1, b]``, in radii from its centre.
        y: ``[T, b, 1]``, in radii from its centre.
        edge: ``[T, 1, 1]``, the width of a smooth edge, in radii.

    Returns:
        ``[T, b, b, 3]`` in 0..255.
    """
    paint = np.asarray(PAINT[thing.colour], dtype=np.float32)
    plain = np.broadcast_to(paint, (*np.broadcast(x, y).shape, 3))
    if thing.texture == "plain":
        return plain
    if thing.texture == "striped":  # dark upright stripes
        wave = np.abs((x / STRIPE_PERIOD) % 1 - 0.5) * STRIPE_PERIOD - STRIPE_PERIOD / 4
        share = np.clip(0.5 - wave / edge, 0, 1) + 0 * y
        return np.asarray(plain * (1 - STRIPE_DEPTH * share[..., None]), dtype=np.float32)
    # Light spots on a grid.
    to_centre = np.hypot((x / SPOT_PERIOD) % 1 - 0.5, (y / SPOT_PERIOD) % 1 - 0.5)
    spot = to_centre * SPOT_PERIOD - SPOT_RADIUS
    share = np.clip(0.5 - spot / edge, 0, 1)[..., None]
    return np.asarray(plain + SPOT_DEPTH * share * (255 - plain), dtype=np.float32)


def _distance(shape: str, x: Floats, y: Floats, radius: Floats) -> Floats:
    """The distance to the outline of a shape in pixels, negative inside.

    Args:
        shape: of `SHAPES`.
        x: ``[T, 1, b]``, in pixels from the centre.
        y: ``[T, b, 1]``, in pixels from the centre.
        radius: ``[T, 1, 1]``, in pixels.

    Returns:
        ``[T, b, b]``.
    """
    if shape == "circle":
        return np.asarray(np.sqrt(x * x + y * y) - radius)
    if shape == "ring":
        return np.asarray(np.abs(np.sqrt(x * x + y * y) - 0.7 * radius) - 0.3 * radius)
    abs_x = np.abs(x)
    abs_y = np.abs(y)
    if shape == "square":
        return np.asarray(np.maximum(abs_x, abs_y) - 0.86 * radius)
    if shape == "cross":
        across = np.maximum(abs_x - radius, abs_y - 0.35 * radius)
        upright = np.maximum(abs_x - 0.35 * radius, abs_y - radius)
        return np.asarray(np.minimum(across, upright))
    # The centre of mass of a triangle is below the middle of its box.
    low = y - 0.3 * radius
    return np.asarray(np.maximum(low, 0.866 * abs_x - 0.5 * low) - 0.62 * radius)


def _paint_text(frames: Floats, text: Text, visible: NDArray[np.intp]) -> None:
    """Paint the strip or card of a text into the visible ones of the frames ``[T, S, S, 3]``."""
    size = frames.shape[1]
    top = round(STRIP * size)
    coverage = mask(text.value, text.font, size, size - top)[..., None]
    ink_colour = SECRET_INK if text.kind == "secret" else INK[text.colour]
    ink = np.asarray(ink_colour, dtype=np.float32)
    paper = np.asarray(_paper_colour(text), dtype=np.float32)
    if text.carrier == "card":
        frames[visible] = paper
    frames[visible, top:] = paper + coverage * (ink - paper)


def _paper_colour(text: Text) -> tuple[int, int, int]:
    if text.carrier == "card":
        return CARD_PAPER
    if text.kind == "secret":
        return SECRET_PAPER
    return TEXT_PAPER
