"""Renders scenes as pixels.

Outlines are signed distances, so that edges are smooth at every size.

Shapes: T frames; S is the side of a frame in pixels; b is the side of the box around a thing, in
pixels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftlens_lab.world.glyphs import mask
from draftlens_lab.world.motion import RADIUS, SPREAD, pan, pose
from draftlens_lab.world.scene import Scene, Shot, Text, Thing

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
CARD_BORDER = 0.0625  # picture units of the card that are visible around an inserted picture
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


@dataclass(frozen=True)
class _Boxes:
    """Boxes around a thing, one for each frame.

    Attributes:
        corners: int ``[T, 2]``, column and row of the frame at which a box begins, which may be
            outside the frame.
        x: ``[T, 1, b]``, pixels to the right of the thing's centre.
        y: ``[T, b, 1]``, pixels below the thing's centre.
        radius: ``[T, 1, 1]``, radius of the thing in pixels.
    """

    corners: NDArray[np.int_]
    x: Floats
    y: Floats
    radius: Floats


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
            _paint_shot(frames[first:stop], shot, _shot_times(shot, times[first:stop]))
    for text in scene.texts:
        _paint_text(frames, text, _visible_frames(clock, text.start, text.end))
    for insert in scene.inserts:
        _paint_insert(frames, insert, _visible_frames(clock, insert.start, insert.end))
    return (frames + 0.5).astype(np.uint8)


def _visible_frames(clock: NDArray[np.float64], start: float, end: float) -> NDArray[np.intp]:
    """Indices of the times from `start` to before `end`; the end of the clip is included."""
    before_end = (clock < end) | (end >= 1)
    return np.flatnonzero((clock >= start) & before_end)


def _shot_times(shot: Shot, times: list[float]) -> list[float]:
    length = shot.end - shot.start
    return [(time - shot.start) / length for time in times]


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
    boxes = _boxes(thing, shot, times, frames.shape[1])
    coverage = _coverage(_distance(thing.shape, boxes.x, boxes.y, boxes.radius))[..., None]
    x = boxes.x / boxes.radius
    y = boxes.y / boxes.radius
    colours = _textured(thing, x, y, 1.5 / boxes.radius)
    for frame, corner, cover, colour in zip(frames, boxes.corners, coverage, colours, strict=True):
        left, top = (int(position) for position in corner)
        _blend(frame, left, top, cover, colour)


def _boxes(thing: Thing, shot: Shot, times: list[float], size: int) -> _Boxes:
    """Boxes around a thing at these shot times, in frames of `size` pixels a side."""
    poses = np.asarray([pose(thing, shot, time) for time in times], dtype=np.float32) * size
    centres = poses[:, :2]
    max_radius = SPREAD[1] if thing.changes_size else RADIUS[thing.size]
    reach = 1.1 * max_radius * size + 2
    corners = np.floor(centres - reach).astype(int)
    steps = np.arange(int(2 * reach) + 2, dtype=np.float32) + 0.5
    x = corners[:, :1] + steps - centres[:, :1]  # [T, b]
    y = corners[:, 1:] + steps - centres[:, 1:]  # [T, b]
    return _Boxes(corners, x[:, None, :], y[:, :, None], poses[:, 2, None, None])


def _coverage(distance: Floats) -> Floats:
    """The share of each pixel inside an outline, from its distance to it in pixels."""
    coverage: Floats = np.clip(0.5 - distance, 0, 1)
    return coverage


def _blend(frame: Floats, left: int, top: int, coverage: Floats, colour: Floats) -> None:
    """Blend a box into a frame, in place.

    Args:
        frame: ``[S, S, 3]``.
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
        x: ``[T, 1, b]``, in radii from its centre.
        y: ``[T, b, 1]``, in radii from its centre.
        edge: ``[T, 1, 1]``, the width of a smooth edge, in radii.

    Returns:
        ``[T, b, b, 3]`` in 0..255.
    """
    paint = np.asarray(PAINT[thing.colour], dtype=np.float32)
    plain = np.broadcast_to(paint, (*np.broadcast(x, y).shape, 3))
    if thing.texture == "striped":
        return _darken_stripes(plain, _coverage(_stripe_distance(x) / edge))
    if thing.texture == "spotted":
        return _lighten_spots(plain, _coverage(_spot_distance(x, y) / edge))
    return plain


def _stripe_distance(x: Floats) -> Floats:
    """The distance to the nearest upright stripe in radii, negative inside."""
    distance: Floats = np.abs((x / STRIPE_PERIOD) % 1 - 0.5) * STRIPE_PERIOD - STRIPE_PERIOD / 4
    return distance


def _spot_distance(x: Floats, y: Floats) -> Floats:
    """The distance to the nearest spot of a grid in radii, negative inside."""
    column = (x / SPOT_PERIOD) % 1 - 0.5
    row = (y / SPOT_PERIOD) % 1 - 0.5
    distance: Floats = np.hypot(column, row) * SPOT_PERIOD - SPOT_RADIUS
    return distance


def _darken_stripes(plain: Floats, stripes: Floats) -> Floats:
    return np.asarray(plain * (1 - STRIPE_DEPTH * stripes[..., None]), dtype=np.float32)


def _lighten_spots(plain: Floats, spots: Floats) -> Floats:
    return np.asarray(plain + SPOT_DEPTH * spots[..., None] * (255 - plain), dtype=np.float32)


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
    if shape in ("circle", "ring"):
        return _round_distance(shape, np.sqrt(x * x + y * y), radius)
    abs_x = np.abs(x)
    distance: Floats
    if shape == "square":
        distance = np.maximum(abs_x, np.abs(y)) - 0.86 * radius
    elif shape == "cross":
        distance = _cross_distance(abs_x, np.abs(y), radius)
    else:
        # The centre of mass of a triangle is below the middle of its box.
        low = y - 0.3 * radius
        distance = np.maximum(low, 0.866 * abs_x - 0.5 * low) - 0.62 * radius
    return distance


def _round_distance(shape: str, to_centre: Floats, radius: Floats) -> Floats:
    distance = to_centre - radius
    if shape == "ring":
        distance = np.abs(to_centre - 0.7 * radius) - 0.3 * radius
    return distance


def _cross_distance(abs_x: Floats, abs_y: Floats, radius: Floats) -> Floats:
    across = np.maximum(abs_x - radius, abs_y - 0.35 * radius)
    upright = np.maximum(abs_x - 0.35 * radius, abs_y - radius)
    distance: Floats = np.minimum(across, upright)
    return distance


def _paint_insert(frames: Floats, insert: Shot, visible: NDArray[np.intp]) -> None:
    """Replace the visible ones of the frames ``[T, S, S, 3]`` by a picture on a card."""
    size = frames.shape[1]
    border = round(CARD_BORDER * size)
    picture = np.empty((1, size, size, 3), dtype=np.float32)
    _paint_shot(picture, insert, [0.5])
    inner = slice(border, size - border)
    frames[visible] = np.asarray(CARD_PAPER, dtype=np.float32)
    frames[visible, inner, inner] = picture[0, inner, inner]


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
