"""Samples of single turns of several kinds, with what precedes them: second turns about a picture
or a clip, and talk."""

from __future__ import annotations

from itertools import count

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens_lab.evaluate.samples import first_seed
from draftlens_lab.world import (
    IMAGE_PROMPTS,
    VIDEO_PROMPTS,
    Scene,
    Story,
    Turn,
    marked_caption,
    marked_still_caption,
    questions,
    sample_scene,
    sample_still,
    small_talk,
    story,
)
from draftlens_lab.world.samples import Sample

SECOND_KINDS = ("second", "recall", "aside")
"""Kinds of second turns.

`second`: a question about one thing, then a request for the caption.
`recall`: the caption, then a question that it answers.
`aside`: the caption, then a question that has nothing to do with it.
"""

TURNS = 900_000
"""Offset of the seeds of these samples among those of a run."""

SEEDS_PER_KIND = 10_000

TALK_TURNS = 3
"""Number of turns of a talk."""

_PLACES = ("picture", "clip")


def second_turns(kind: str, about: str, number: int, seed: int) -> list[Sample]:
    """Held-out scenes, each with two turns.

    Args:
        kind: one of SECOND_KINDS.
    """
    if kind not in SECOND_KINDS:
        raise ConfigError(f"there is no second turn {kind!r}; there are {', '.join(SECOND_KINDS)}")
    if about not in _PLACES:
        raise ConfigError(f"a second turn is about a picture or a clip, not {about!r}")
    place = len(_PLACES) * SECOND_KINDS.index(kind) + _PLACES.index(about)
    first = _first_seed(seed, place)
    return [_second_turn(kind, about, first + index) for index in range(number)]


def talks(number: int, seed: int) -> list[Sample]:
    """Talks without media, of TALK_TURNS different questions each; no two are equal."""
    first = _first_seed(seed, len(_PLACES) * len(SECOND_KINDS))
    found: dict[tuple[Turn, ...], Sample] = {}
    seeds = count(first)
    while len(found) < number:
        turns = _talk(np.random.default_rng([next(seeds), 3]))
        found.setdefault(turns, Sample("talk", (), turns))
    return list(found.values())


def stories(number: int, seed: int) -> list[Story]:
    """Held-out stories of five pictures with four captions."""
    first = _first_seed(seed, len(_PLACES) * len(SECOND_KINDS) + 1)
    return [story(first + index) for index in range(number)]


def _first_seed(seed: int, place: int) -> int:
    """The first seed of the kind in this place, in a run with this ``--seed``."""
    return first_seed(seed) + TURNS + SEEDS_PER_KIND * place


def _second_turn(kind: str, about: str, seed: int) -> Sample:
    rng = np.random.default_rng([seed, 3])
    still = about == "picture"
    scene = sample_still(seed) if still else sample_scene(seed)
    caption = _caption(scene, still)
    if kind == "second":
        return Sample(about, (scene,), (_question(scene, still, rng), caption))
    if kind == "recall":
        return Sample(about, (scene,), (caption, _question(scene, still, rng)))
    return Sample(about, (scene,), (caption, small_talk(rng)))


def _caption(scene: Scene, still: bool) -> Turn:
    if still:
        return Turn(IMAGE_PROMPTS[0], marked_still_caption(scene), "caption")
    return Turn(VIDEO_PROMPTS[0], marked_caption(scene), "caption")


def _question(scene: Scene, still: bool, rng: np.random.Generator) -> Turn:
    turns = questions(scene, still)
    return turns[int(rng.integers(len(turns)))]


def _talk(rng: np.random.Generator) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    while len(turns) < TALK_TURNS:
        turn = small_talk(rng)
        if turn not in turns:
            turns.append(turn)
    return tuple(turns)
