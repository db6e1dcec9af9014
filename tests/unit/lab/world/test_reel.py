"""Reels: their structure, their split, and needles that are in one frame only."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from draftlens_lab.world import HELD_OUT, Reel, frame_times, render, sample_reel
from draftlens_lab.world.reel import NEEDLES

from draftlens.core.errors import ConfigError
from tests.unit.lab.world.reference import is_novel

SEEDS = [*range(25), *range(HELD_OUT, HELD_OUT + 25)]


def frames_of(reel: Reel, index: int) -> list[int]:
    """The frames of a shot."""
    shot = reel.scene.shots[index]
    times = frame_times(reel.frames)
    return [frame for frame, time in enumerate(times) if shot.start <= time < shot.end]


@pytest.mark.parametrize("frames", [16, 64, 1024])
def test_a_reel_has_4_to_16_shots_and_a_text_for_each(frames: int) -> None:
    counts = set()
    for seed in SEEDS:
        reel = sample_reel(seed, frames)
        shots = reel.scene.shots
        counts.add(len(shots))
        parts = [frames_of(reel, index) for index in range(len(shots))]
        assert [frame for part in parts for frame in part] == list(range(frames))
        assert min(map(len, parts)) >= 4
        assert all(a.background != b.background for a, b in pairwise(shots))
        assert [(text.start, text.end) for text in reel.texts] == [
            (shot.start, shot.end) for shot in shots
        ]
        assert len({text.value for text in reel.texts}) == len(shots)
    assert counts <= ({4} if frames == 16 else set(range(4, 17)))
    assert frames == 16 or len(counts) > 6


@pytest.mark.parametrize("needle", [None, *NEEDLES])
def test_the_same_seed_gives_the_same_reel_of_its_split(needle: str | None) -> None:
    for seed in SEEDS:
        reel = sample_reel(seed, 64, needle)
        assert reel == sample_reel(seed, 64, needle)
        assert is_novel(reel.scene) == (seed >= HELD_OUT)
    assert len({sample_reel(seed, 64, needle).scene.shots for seed in SEEDS}) == len(SEEDS)


def test_the_hero_enters_first_leaves_last_and_has_a_look_of_its_own() -> None:
    for seed in SEEDS:
        reel = sample_reel(seed, 64)
        indices = [index for index, _ in reel.hero]
        motions = [hero.motion for _, hero in reel.hero]
        assert 3 <= len(indices) <= 6
        assert indices == sorted(set(indices))
        assert (motions[0], motions[-1]) == ("enter", "leave")
        assert not {"enter", "leave"} & set(motions[1:-1])
        look = {(hero.colour, hero.shape) for _, hero in reel.hero}
        assert len(look) == 1
        for index, shot in enumerate(reel.scene.shots):
            same = [thing for thing in shot.things if (thing.colour, thing.shape) in look]
            assert same == [hero for at, hero in reel.hero if at == index]


def test_shots_keep_the_rules_of_the_world() -> None:
    for seed in SEEDS:
        for shot in sample_reel(seed, 64).scene.shots:
            colours = [thing.colour for thing in shot.things]
            motions = [thing.motion for thing in shot.things]
            assert len(set(colours)) == len(colours)
            assert shot.camera == "still" or set(motions) == {"stay"}
            assert set(motions) not in ({"left"}, {"right"})
            rows = [t.place.split()[0] for t in shot.things if t.motion == "bump"]
            assert len(rows) in (0, 2)
            assert len(set(rows)) <= 1


@pytest.mark.parametrize("frames", [64, 256])
@pytest.mark.parametrize("needle", NEEDLES)
def test_a_needle_is_in_exactly_one_frame(needle: str, frames: int) -> None:
    for seed in SEEDS[::5]:
        with_needle = sample_reel(seed, frames, needle).scene
        secret = with_needle.secret
        without = replace(
            with_needle,
            inserts=(),
            texts=tuple(text for text in with_needle.texts if text is not secret),
        )
        changed = render(with_needle, frames, 64) != render(without, frames, 64)
        shown = np.flatnonzero(changed.any(axis=(1, 2, 3)))
        assert len(shown) == 1
        (frame,) = shown
        carrier = secret.carrier if secret else "picture"
        assert carrier in (needle, "strip")
        # A strip covers the bottom row of cells; a card covers the frame.
        rows = np.flatnonzero(changed[frame].any(axis=(1, 2)))
        assert rows.min() >= 48 if carrier == "strip" else rows.min() < 4


def test_cards_and_pictures_leave_seven_frames_of_their_shot() -> None:
    carriers = set()
    for seed in SEEDS:
        for needle in ("card", "picture"):
            reel = sample_reel(seed, 32, needle)
            secret = reel.scene.secret
            carriers.add(secret.carrier if secret else "picture")
            if secret is None or secret.carrier == "card":
                (start,) = [part.start for part in (*reel.scene.inserts, secret) if part]
                lengths = [
                    len(frames_of(reel, index))
                    for index, shot in enumerate(reel.scene.shots)
                    if shot.start <= start < shot.end
                ]
                assert lengths[0] >= 8
    assert carriers == {"card", "picture", "strip"}


def test_too_few_frames_and_unknown_needles_are_refused() -> None:
    with pytest.raises(ConfigError, match="15 frames are too few for a reel"):
        sample_reel(0, 15)
    with pytest.raises(ConfigError, match="no needle 'pin'; there are strip, card, picture"):
        sample_reel(0, 16, "pin")
