"""Training samples: scenes and a dialogue about them, with one right answer for each turn."""

from dataclasses import dataclass

import numpy as np

from draftlens.world.dialogue import Turn, describe, differences, follow_ups, questions, small_talk
from draftlens.world.sample import sample_pair, sample_scene, sample_still
from draftlens.world.scene import Scene

KINDS = ("clip", "picture", "pair", "talk")
# Families of questions. Each is equally likely, whatever its number of questions.
FAMILIES = ("retrieval", "ordering", "counting", "attribute")
QUESTIONS = 5  # number of questions beside a caption
TALK_TURNS = 8  # number of turns of a dialogue without pictures


@dataclass(frozen=True)
class Sample:
    """One dialogue.

    Attributes:
        kind: of `KINDS`.
        scenes: the clip, the picture or the two pictures; empty for the kind "talk".
        turns: the questions and their answers.
    """

    kind: str
    scenes: tuple[Scene, ...]
    turns: tuple[Turn, ...]


def draw(kind: str, seed: int) -> Sample:
    """The sample of a kind for a seed. Seeds from HELD_OUT on give held-out scenes."""
    rng = np.random.default_rng([seed, 2])
    if kind == "talk":
        return Sample(kind, (), tuple(small_talk(rng) for _ in range(TALK_TURNS)))
    if kind == "pair":
        first, second = sample_pair(seed)
        turns = _shuffled(differences(first, second), rng)
        return Sample(kind, (first, second), tuple(turns))
    if kind == "picture":
        picture = sample_still(seed)
        return Sample(kind, (picture,), tuple(_dialogue(picture, rng, still=True)))
    clip = sample_scene(seed)
    return Sample(kind, (clip,), tuple(_dialogue(clip, rng, still=False)))


def _dialogue(scene: Scene, rng: np.random.Generator, still: bool) -> list[Turn]:
    """A caption with questions before or after it, or questions only.

    One dialogue in four has questions only, and then twice as many.
    """
    if rng.random() < 0.25:
        return _draw_questions(scene, rng, still, 2 * QUESTIONS)
    turns = _draw_questions(scene, rng, still, QUESTIONS)
    caption_first = rng.random() < 0.6
    caption = describe(scene, rng, still)
    return [caption, *turns] if caption_first else [*turns, caption]


def _draw_questions(scene: Scene, rng: np.random.Generator, still: bool, count: int) -> list[Turn]:
    """Up to `count` different questions, and one time in four a follow-up after them."""
    pools = _question_pools(scene, rng, still)
    turns: list[Turn] = []
    while len(turns) < count and any(pools):
        pool = pools[int(rng.integers(len(pools)))]
        if pool:
            turns.append(pool.pop())
    pairs = follow_ups(scene, still)
    if pairs and rng.random() < 0.25:
        turns += pairs[int(rng.integers(len(pairs)))]
    return turns


def _question_pools(scene: Scene, rng: np.random.Generator, still: bool) -> list[list[Turn]]:
    """The questions of each family, in random order."""
    turns = questions(scene, still)
    pools = []
    for family in FAMILIES:
        pools.append(_shuffled([turn for turn in turns if turn.family == family], rng))
    return pools


def _shuffled(turns: list[Turn], rng: np.random.Generator) -> list[Turn]:
    return [turns[int(index)] for index in rng.permutation(len(turns))]
