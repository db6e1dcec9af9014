"""Samples of the evaluation: held-out scenes with one request each, from seeds that no other part
of draftlens uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, islice

import numpy as np

from draftlens_lab.world import (
    HELD_OUT,
    IMAGE_PROMPTS,
    VIDEO_PROMPTS,
    Scene,
    Turn,
    differences,
    follow_ups,
    marked_caption,
    marked_still_caption,
    questions,
    sample_pair,
    sample_scene,
    sample_still,
    small_talk,
)
from draftlens_lab.world.samples import Sample

FAMILIES = {
    "retrieval": "clip",
    "ordering": "clip",
    "counting": "clip",
    "attribute": "clip",
    "follow-up": "clip",
    "picture": "picture",
    "difference": "pair",
    "edit": "pair",
    "text only": "talk",
}
"""Family of questions to the kind of sample that its questions are about. The family `picture`
holds all questions about one picture."""

KINDS = tuple(dict.fromkeys(FAMILIES.values()))

SEEDS_PER_RUN = 1_000_000
"""Scene seeds reserved for each value of ``--seed``. The first million after HELD_OUT belongs to
the bundled clips and to training."""

PICTURES = 100_000
"""Offset of the seeds of picture captions."""

QUESTIONS = 200_000
"""Offset of the seeds of questions."""

SEEDS_PER_FAMILY = 50_000


def caption_samples(kind: str, number: int, seed: int) -> list[Sample]:
    """Held-out scenes, each with the request for its caption in the first wording."""
    first = first_seed(seed)
    if kind == "clip":
        return [_clip_caption(sample_scene(first + index)) for index in range(number)]
    return [_picture_caption(sample_still(first + PICTURES + index)) for index in range(number)]


def question_samples(family: str, number: int, seed: int) -> list[Sample]:
    """Held-out scenes, each with one question of a family; scenes that allow none are skipped."""
    place = list(FAMILIES).index(family)
    first = first_seed(seed) + QUESTIONS + SEEDS_PER_FAMILY * place
    return list(islice(_random_questions(family, first), number))


def possible_samples(
    family: str, scenes: tuple[Scene, ...], rng: np.random.Generator
) -> list[Sample]:
    """Every question of a family about the scenes, a sample each. A follow-up question comes with
    the question before it."""
    kind = FAMILIES[family]
    dialogues: list[tuple[Turn, ...]]
    if kind == "talk":
        dialogues = [(small_talk(rng),)]
    elif kind == "pair":
        dialogues = [(turn,) for turn in differences(*scenes) if turn.family == family]
    elif family == "follow-up":
        dialogues = list(follow_ups(scenes[0], still=False))
    else:
        turns = questions(scenes[0], still=kind == "picture")
        dialogues = [(turn,) for turn in turns if family in ("picture", turn.family)]
    return [Sample(kind, scenes, turns) for turns in dialogues]


def scenes_of(kind: str, seed: int) -> tuple[Scene, ...]:
    """The scenes that a sample of this kind and seed shows."""
    if kind == "talk":
        return ()
    if kind == "pair":
        return sample_pair(seed)
    if kind == "picture":
        return (sample_still(seed),)
    return (sample_scene(seed),)


def wording(question: str) -> str:
    """A question with an ellipsis in place of each word or number of its scene."""
    return re.sub(r"\b([A-Z]{2,}|[0-9]+)\b", "…", question)


def _clip_caption(scene: Scene) -> Sample:
    return Sample("clip", (scene,), (Turn(VIDEO_PROMPTS[0], marked_caption(scene), "caption"),))


def _picture_caption(scene: Scene) -> Sample:
    return Sample(
        "picture", (scene,), (Turn(IMAGE_PROMPTS[0], marked_still_caption(scene), "caption"),)
    )


def _random_questions(family: str, first_seed: int) -> Iterator[Sample]:
    """One random question about each scene from a seed on, without end."""
    for seed in count(first_seed):
        rng = np.random.default_rng([seed, 3])
        samples = possible_samples(family, scenes_of(FAMILIES[family], seed), rng)
        if samples:
            yield samples[int(rng.integers(len(samples)))]


def first_seed(seed: int) -> int:
    """The first of the scene seeds of a run with this ``--seed``."""
    return HELD_OUT + SEEDS_PER_RUN * (1 + seed)
