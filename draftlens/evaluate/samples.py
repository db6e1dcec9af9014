"""What is asked: held-out scenes and one question about each, from seeds that no other part of
draftlens uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, islice

import numpy as np

from draftlens.world import (
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
from draftlens.world.samples import Sample

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
"""Family of questions to the kind of sample that it is asked about; `picture` is any question about
one picture."""

SPAN = 1_000_000  # seeds from HELD_OUT on for each --seed; the first span is left to the bundled clips and training
PICTURES, QUESTIONS, FAMILY = (
    100_000,
    200_000,
    50_000,
)  # where parts of a span begin, and how long a family's is


def captions(kind: str, number: int, seed: int) -> list[Sample]:
    """Held-out scenes, one a sample, each with the request for its caption in the first wording.

    Args:
        kind: `clip` or `picture`.
        number: of samples.
        seed: other seeds give other scenes.
    """
    if kind == "clip":
        scenes = [sample_scene(s) for s in range(_span(seed), _span(seed) + number)]
        return [
            Sample(kind, (s,), (Turn(VIDEO_PROMPTS[0], marked_caption(s), "caption"),))
            for s in scenes
        ]
    scenes = [
        sample_still(s) for s in range(_span(seed) + PICTURES, _span(seed) + PICTURES + number)
    ]
    return [
        Sample(kind, (s,), (Turn(IMAGE_PROMPTS[0], marked_still_caption(s), "caption"),))
        for s in scenes
    ]


def asked(family: str, number: int, seed: int) -> list[Sample]:
    """One question of a family for each of `number` held-out scenes; scenes that allow none are
    passed over."""
    first = _span(seed) + QUESTIONS + FAMILY * list(FAMILIES).index(family)
    return list(islice(_drawn(family, first), number))


def pool(family: str, shown: tuple[Scene, ...], rng: np.random.Generator) -> list[Sample]:
    """Every question of a family about a scene; a follow-up comes behind the question it follows.

    Args:
        shown: what `shown_by` gave for the family's kind.
        rng: draws a question that needs no picture.
    """
    kind = FAMILIES[family]
    if kind == "talk":
        dialogues: list[tuple[Turn, ...]] = [(small_talk(rng),)]
    elif kind == "pair":
        dialogues = [(turn,) for turn in differences(*shown) if turn.family == family]
    elif family == "follow-up":
        dialogues = list(follow_ups(shown[0], still=False))
    else:
        turns = questions(shown[0], still=kind == "picture")
        dialogues = [(turn,) for turn in turns if family in ("picture", turn.family)]
    return [Sample(kind, shown, turns) for turns in dialogues]


def shown_by(kind: str, seed: int) -> tuple[Scene, ...]:
    """What the sample of this kind and seed shows."""
    if kind == "talk":
        return ()
    if kind == "pair":
        return sample_pair(seed)
    return (sample_still(seed) if kind == "picture" else sample_scene(seed),)


def wording(question: str) -> str:
    """A question without the words and numbers of its scene."""
    return re.sub(r"\b([A-Z]{2,}|[0-9]+)\b", "…", question)


def _drawn(family: str, first: int) -> Iterator[Sample]:
    for seed in count(first):
        rng = np.random.default_rng([seed, 3])
        if found := pool(family, shown_by(FAMILIES[family], seed), rng):
            yield found[int(rng.integers(len(found)))]


def _span(seed: int) -> int:
    return HELD_OUT + SPAN * (1 + seed)
