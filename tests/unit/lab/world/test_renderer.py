"""The world's pixels: every fact of a caption is visible, at its place and time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from draftlens_lab.world import (
    HELD_OUT,
    Scene,
    caption,
    frame_times,
    render,
    render_at,
    render_still,
    sample_scene,
    sample_still,
)
from draftlens_lab.world import scene as s
from draftlens_lab.world.glyphs import mask
from draftlens_lab.world.motion import pose
from draftlens_lab.world.renderer import INK, PAINT

from tests.unit.lab.world.reference import (
    background_of,
    expected_pose,
    make_scene,
    make_shot,
    make_thing,
    nearest_colour,
    shot_at,
    text_at,
)

SEEDS = [*range(40), *range(HELD_OUT, HELD_OUT + 20)]
TOP = 52  # the first row of the strip, of 64
CLEAR = 6  # the number of clearly different pixels that makes a difference visible
NEIGHBOUR = make_thing(place="top right", colour="blue", centre=(0.75, 0.25))


def differing(first: np.ndarray, second: np.ndarray) -> int:
    """How many pixels of two renderings clearly differ."""
    return int((np.abs(first.astype(int) - second).sum(-1) > 40).sum())


def word(value: str = "moon", **changes: object) -> s.Text:
    fields = {
        "kind": "word",
        "colour": "white",
        "carrier": "strip",
        "font": "sans",
        "start": 0.26,
        "end": 0.46,
    }
    return s.Text(**{**fields, "value": value, **changes})  # type: ignore[arg-type]


def with_thing(scene: Scene, at: int, which: int, **changes: str) -> Scene:
    """The scene with one thing of one shot changed."""
    shot = scene.shots[at]
    things = (
        *shot.things[:which],
        replace(shot.things[which], **changes),
        *shot.things[which + 1 :],
    )  # type: ignore[arg-type]
    return replace(
        scene, shots=(*scene.shots[:at], replace(shot, things=things), *scene.shots[at + 1 :])
    )


@pytest.mark.parametrize("size", [64, 100])
def test_frames_are_those_of_their_times(size: int) -> None:
    for seed in (1, 5, HELD_OUT + 2):
        scene = sample_scene(seed)
        frames = render(scene, 12, size)
        assert frames.dtype == np.uint8
        assert frames.shape == (12, size, size, 3)
        for frame, time in zip(frames, frame_times(12), strict=True):
            assert np.array_equal(render_at(scene, [time], size)[0], frame)
    picture = sample_still(3)
    assert np.array_equal(render_still(picture, size), render_at(picture, [0.3], size)[0])


def test_large_frames_are_small_ones_in_detail() -> None:
    scene = sample_scene(4)
    large, small = render(scene, 4, 256)[:, : 4 * TOP], render(scene, 4, 64)[:, :TOP]
    shrunk = large.reshape(4, TOP, 4, 64, 4, 3).mean((2, 4))
    assert np.abs(shrunk - small).mean() < 1.5


def test_things_are_where_their_motions_lead() -> None:
    for seed in SEEDS:
        for shot in sample_scene(seed).shots:
            for thing in shot.things:
                for time in np.linspace(0, 1, 9):
                    assert pose(thing, shot, float(time)) == pytest.approx(
                        expected_pose(thing, shot, float(time))
                    )


def painted_points(scene: Scene, time: float, size: int) -> Iterator[tuple[int, int, str]]:
    """Row and column of a point of each thing that nothing covers, and the thing's colour."""
    text = text_at(scene, time)
    if text is not None and text.carrier == "card":
        return
    at, within = shot_at(scene, time)
    things = [
        (thing, *expected_pose(thing, scene.shots[at], within)) for thing in scene.shots[at].things
    ]
    for thing, x, y, radius in things:
        top = y - 0.7 * radius if thing.shape == "ring" else y  # a ring's middle is empty
        near = [
            neighbour
            for neighbour, ox, oy, r in things
            if neighbour is not thing and math.hypot(ox - x, oy - top) < r + 0.04
        ]
        if not near and 0.02 < x < 0.98 and (text is None or top < 0.79):
            yield int(top * size), int(x * size), thing.colour


def test_things_have_their_colour_where_they_are() -> None:
    num_points = 0
    for seed in SEEDS:
        scene = sample_scene(seed)
        for frame, time in zip(render(scene, 8, 64), frame_times(8), strict=True):
            for row, column, colour in painted_points(scene, time, 64):
                assert nearest_colour(frame[row, column]) == colour
                num_points += 1
    assert num_points > 900


def test_things_of_pictures_have_their_colour_where_they_are() -> None:
    for seed in SEEDS:
        frame = render_still(sample_still(seed), 64)
        for row, column, colour in painted_points(replace(sample_still(seed), texts=()), 0.5, 64):
            assert nearest_colour(frame[row, column]) == colour


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("when", "before", "after"), [("early", 0.05, 0.4), ("late", 0.55, 0.9)])
def test_entering_things_are_outside_before_and_inside_after(
    side: str, when: str, before: float, after: float
) -> None:
    fields = {"place": f"top {side}", "centre": (0.25 if side == "left" else 0.75, 0.25)}
    for motion, empty, full in (("enter", before, after), ("leave", after, before)):
        moving = make_scene(make_shot(make_thing(motion, when=when, **fields)))
        staying = make_scene(make_shot(make_thing(**fields)))
        assert (render_at(moving, [empty], 64) == PAINT["black"]).all()
        assert np.array_equal(render_at(moving, [full], 64), render_at(staying, [0.5], 64))


def test_bumping_things_touch_half_way_and_come_back() -> None:
    for sizes in (("large", "large"), ("small", "large"), ("small", "small")):
        pair = make_thing("bump", size=sizes[0]), replace(NEIGHBOUR, motion="bump", size=sizes[1])
        shot = make_shot(*pair)
        (x, _, r), (other_x, _, other_r) = (pose(thing, shot, 0.5) for thing in pair)
        assert other_x - x == pytest.approx(r + other_r)
        apart, together, back = render_at(make_scene(shot), [0.0, 0.5, 1.0], 100)
        assert np.array_equal(apart, back)
        row = [
            nearest_colour(pixel) for pixel in together[25, int(100 * x) : int(100 * other_x) + 1]
        ]
        assert row.count("none") <= 2  # the point where both outlines are half covered
        assert [nearest_colour(pixel) for pixel in apart[25, 25:76]].count("none") > 15


@pytest.mark.parametrize(("camera", "sign"), [("left", 1), ("right", -1)])
@pytest.mark.parametrize("pattern", s.PATTERNS)
def test_a_panning_camera_shifts_everything_by_the_same_way(
    camera: str, sign: int, pattern: str
) -> None:
    shot = make_shot(
        make_thing(),
        make_thing(place="bottom right", shape="cross", centre=(0.75, 0.62)),
        camera=camera,
        pattern=pattern,
    )
    first, last = render_at(make_scene(shot), [0.25, 0.75], 200).astype(int)
    step = 26  # of 200 pixels: half of the whole way
    if sign < 0:
        before = first[:, step:]
        after = last[:, : 200 - step]
    else:
        before = first[:, : 200 - step]
        after = last[:, step:]
    assert np.abs(before - after).max() <= 1
    assert differing(first, last) > 2000


def test_a_cut_changes_the_background_at_its_frame() -> None:
    cuts = 0
    for seed in SEEDS:
        scene = replace(sample_scene(seed), texts=())
        for frame, time in zip(render(scene, 32, 64), frame_times(32), strict=True):
            expected = scene.shots[0 if time < scene.shots[0].end else -1].background
            assert background_of(frame[0, 0]) == background_of(frame[0, 32]) == expected
        cuts += len(scene.shots) - 1
    assert cuts > 20


def test_patterns_can_be_told_apart() -> None:
    for background in s.BACKGROUNDS:
        frames = {
            p: render_still(
                make_scene(make_shot(make_thing(), background=background, pattern=p)), 64
            )
            for p in s.PATTERNS
        }
        assert len({tuple(pixel) for pixel in frames["plain"][0]}) == 1
        assert (frames["lined"][0] == frames["lined"][63]).all()
        assert not (frames["checked"][0] == frames["checked"][9]).all()
        assert differing(frames["plain"], frames["lined"]) > 1000
        assert differing(frames["lined"], frames["checked"]) > 1000


@cache
def covers(font: str, height: int, width: int) -> dict[str, np.ndarray]:
    return {value: mask(value, font, width, height) for value in (*s.WORDS, *s.NUMBERS)}


@pytest.mark.parametrize("font", s.FONTS)
def test_texts_fit_their_strip_and_are_unlike_each_other(font: str) -> None:
    masks = covers(font, 12, 64)
    for value, cover in masks.items():
        assert cover.max() > 0.9
        assert not cover[:, 0].any()
        assert not cover[:, -1].any()
        gaps = [float(np.abs(cover - masks[name]).sum()) for name in masks if name != value]
        assert min(gaps) > 4


def strip_cover(strip: np.ndarray, text: s.Text) -> np.ndarray:
    """How much ink lies on each pixel of a strip, read from its green channel."""
    ink = 10 if text.kind == "secret" else INK[text.colour][1]
    paper = 250 if text.kind == "secret" else 0
    if text.carrier == "card":
        paper = 226
    return (strip[..., 1].astype(float) - paper) / (ink - paper)


def test_texts_stand_in_exactly_the_frames_of_their_time_and_can_be_read() -> None:
    kinds = set()
    for seed in SEEDS:
        scene = sample_scene(seed)
        bare = render(replace(scene, texts=()), 32, 64)
        for frame, without, time in zip(render(scene, 32, 64), bare, frame_times(32), strict=True):
            text = text_at(scene, time)
            if text is None:
                assert np.array_equal(frame, without)
                continue
            kinds.add((text.kind, text.carrier))
            assert text.carrier == "card" or np.array_equal(frame[:TOP], without[:TOP])
            cover = strip_cover(frame[TOP:], text)
            masks = covers(text.font, 12, 64)
            assert (
                min(masks, key=lambda value: float(np.abs(masks[value] - cover).sum()))
                == text.value
            )
    assert kinds == {
        ("word", "strip"),
        ("number", "strip"),
        ("secret", "strip"),
        ("secret", "card"),
    }


@pytest.mark.parametrize("colour", s.TEXT_COLOURS)
def test_texts_have_their_colour(colour: str) -> None:
    frame = render_at(make_scene(make_shot(make_thing()), texts=(word(colour=colour),)), [0.3], 64)[
        0
    ]
    r, g, b = (int(v) for v in frame[TOP:].reshape(-1, 3).max(0))
    conditions = {
        "white": r == g == b,
        "yellow": r > g > 4 * b,
        "green": g > 2 * r and g > 2 * b,
        "pink": r > b > g,
    }
    assert [name for name, holds in conditions.items() if holds] == [colour]


def test_cards_hide_everything() -> None:
    card = word("moon", kind="secret", colour="black", carrier="card")
    scenes = [
        make_scene(make_shot(*things, background=b), texts=(card,))
        for things, b in (((make_thing(),), "navy"), ((), "white"))
    ]
    first, second = (render_at(scene, [0.2, 0.3, 0.5], 64) for scene in scenes)
    assert np.array_equal(first[1], second[1])
    assert differing(first[0], second[0]) > 1000
    assert differing(first[2], second[2]) > 1000
    assert len({tuple(pixel) for pixel in first[1][:TOP].reshape(-1, 3)}) == 1


@pytest.mark.parametrize("seed", [*range(24), *range(HELD_OUT, HELD_OUT + 8)])
def test_all_that_is_said_shows_in_eight_frames(seed: int) -> None:
    scene = sample_scene(seed)
    frames = render(scene, 8, 64)
    for text in scene.texts:
        assert any(text.start <= time < text.end for time in frame_times(8))
    for at, shot in enumerate(scene.shots):
        for which, thing in enumerate(shot.things):
            for name, values in (
                ("shape", s.SHAPES),
                ("texture", s.TEXTURES),
                ("colour", s.COLOURS),
            ):
                value = next(v for v in values if v != getattr(thing, name))
                assert (
                    differing(render(with_thing(scene, at, which, **{name: value}), 8, 64), frames)
                    > CLEAR
                )
            if thing.motion not in ("stay", "bump"):
                still = with_thing(scene, at, which, motion="stay", when="")
                assert differing(render(still, 8, 64), frames) > 10 * CLEAR
        if shot.camera != "still":
            changed = replace(shot, camera="still")
        else:
            changed = replace(shot, background="black")
        if changed != shot:
            shots = (*scene.shots[:at], changed, *scene.shots[at + 1 :])
            assert differing(render(replace(scene, shots=shots), 8, 64), frames) > 10 * CLEAR


def test_equal_pixels_mean_equal_captions() -> None:
    captions: dict[bytes, str] = {}
    for seed in range(500):
        scene = sample_scene(seed)
        key = hashlib.sha256(render(scene, 8, 64).tobytes()).digest()
        assert captions.setdefault(key, caption(scene)) == caption(scene)
