"""The world: the same from every seed, and said rightly."""

from dataclasses import replace

import numpy as np
import pytest

from draftlens.train.world import (
    HELD_OUT,
    Scene,
    Thing,
    caption,
    facts,
    frame_times,
    questions,
    read_facts,
    render,
    render_still,
    right_facts,
    sample_scene,
    sample_still,
    still_caption,
    still_facts,
)
from draftlens.train.world.render import PAINT
from draftlens.train.world.scene import BACKGROUNDS, COLOURS, MOTIONS, SHAPES, pose


def one(**changes: object) -> Scene:
    """A scene with two things; the first, at the top left, is changed as asked."""
    first = Thing("top left", "red", "circle", "large", "stay", (0.25, 0.25))
    second = Thing("bottom right", "blue", "square", "small", "stay", (0.75, 0.75))
    return Scene(seed=0, background="black", things=(replace(first, **changes), second))


def centre_of(frame: np.ndarray, background: str) -> tuple[float, float]:
    """Mean x and y, in 0..1, of what is drawn in the top left quarter of a frame."""
    half = frame.shape[0] // 2
    drawn = np.abs(frame[:half, :half].astype(int) - PAINT[background]).sum(-1) > 30
    y, x = np.nonzero(drawn)
    return float(x.mean()) / frame.shape[0], float(y.mean()) / frame.shape[0]


def test_same_seed_same_scene_pixels_and_words() -> None:
    for seed in (0, 7, HELD_OUT + 3):
        assert sample_scene(seed) == sample_scene(seed)
        assert np.array_equal(render(sample_scene(seed), 4, 64), render(sample_scene(seed), 4, 64))
        assert caption(sample_scene(seed)) == caption(sample_scene(seed))
    assert sample_scene(0) != sample_scene(1)


@pytest.mark.parametrize("seed", range(0, 300, 7))
def test_captions_state_exactly_the_facts(seed: int) -> None:
    moving, still = sample_scene(seed), sample_still(seed)
    assert read_facts(caption(moving)) == facts(moving)
    assert read_facts(still_caption(still)) == still_facts(still)
    assert right_facts(caption(moving), facts(moving)) == (len(facts(moving)), len(facts(moving)))


@pytest.mark.parametrize(
    ("name", "values"),
    [("colour", COLOURS[3:]), ("shape", SHAPES[1:]), ("size", ("small",)), ("motion", MOTIONS[1:])],
)
def test_a_changed_fact_changes_the_caption(name: str, values: tuple[str, ...]) -> None:
    said = {caption(one(**{name: value})) for value in values} | {caption(one())}
    assert len(said) == len(values) + 1


def test_background_is_said_and_drawn() -> None:
    scenes = [replace(one(), background=background) for background in BACKGROUNDS]
    assert len({caption(scene) for scene in scenes}) == len(BACKGROUNDS)
    for scene in scenes:
        assert tuple(render_still(scene, 64)[0, 0]) == PAINT[scene.background]


def test_wrong_and_invented_facts_are_counted() -> None:
    truth = facts(one())
    assert right_facts(caption(one(colour="green")), truth) == (len(truth) - 1, len(truth))
    invented = caption(one()) + " There is a small green ring at the top right, and it stays where it is."
    right, total = right_facts(invented, truth)
    assert right == len(truth)
    assert total == len(truth) + 4


@pytest.mark.parametrize(("motion", "axis", "sign"), [("left", 0, -1), ("right", 0, 1), ("up", 1, -1), ("down", 1, 1)])
def test_motion_is_drawn(motion: str, axis: int, sign: int) -> None:
    frames = render(one(motion=motion), 8, 64)
    first, last = centre_of(frames[0], "black"), centre_of(frames[-1], "black")
    assert sign * (last[axis] - first[axis]) > 0.12
    assert abs(last[1 - axis] - first[1 - axis]) < 0.02


def test_entering_and_leaving_things_are_out_of_view_when_they_should_be() -> None:
    for motion, empty, full in (("enter", 0, -1), ("leave", -1, 0)):
        frames = render(one(motion=motion), 8, 64)
        assert (frames[empty][:32, :32] == PAINT["black"]).all()
        assert not (frames[full][:32, :32] == PAINT["black"]).all()


def test_things_keep_to_their_quarter() -> None:
    for seed in range(200):
        for thing in sample_scene(seed).things:
            for time in frame_times(8):
                x, y, radius = pose(thing, time)
                assert radius <= y % 0.5 <= 0.5 - radius
                if thing.motion not in ("enter", "leave"):
                    assert radius <= x % 0.5 <= 0.5 - radius


def test_render_is_close_to_the_paint_and_scales() -> None:
    small, large = render(one(), 2, 64), render(one(), 2, 256)
    assert small.dtype == np.uint8
    assert small.shape == (2, 64, 64, 3)
    assert tuple(large[0, 64, 64]) == tuple(small[0, 16, 16]) == PAINT["red"]
    shrunk = large.reshape(2, 64, 4, 64, 4, 3).mean((2, 4))
    assert np.abs(shrunk - small).mean() < 1.0


def test_every_question_has_an_answer_of_its_own() -> None:
    for seed in range(50):
        turns = questions(sample_scene(seed), still=False)
        assert len({turn.question for turn in turns}) == len(turns)
        assert all(turn.answer.endswith(".") for turn in turns)
