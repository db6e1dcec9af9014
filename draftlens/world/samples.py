"""Training samples: what is shown, and a dialogue about it with one right answer a turn."""

from dataclasses import dataclass

import numpy as np

from draftlens.world.dialogue import Turn, describe, differences, follow_ups, questions, small_talk
from draftlens.world.sample import sample_pair, sample_scene, sample_still
from draftlens.world.scene import Scene

KINDS = ("clip", "picture", "pair", "talk")
ASKED = 5  # questions beside a caption
FAMILIES = (
    "retrieval",
    "ordering",
    "counting",
    "attribute",
)  # drawn alike often, whatever their number of questions


@dataclass(frozen=True)
class Sample:
    """One dialogue about a clip, a picture, a pair of pictures, or nothing to be seen."""

    kind: str
    scenes: tuple[Scene, ...]
    turns: tuple[Turn, ...]


def draw(kind: str, seed: int) -> Sample:
    """The sample of this seed; seeds from HELD_OUT on give held-out scenes."""
    rng = np.random.default_rng([seed, 2])
    if kind == "talk":
        return Sample(kind, (), tuple(small_talk(rng) for _ in range(8)))
    if kind == "pair":
        first, second = sample_pair(seed)
        asked = differences(first, second)
        return Sample(
            kind, (first, second), tuple(asked[int(i)] for i in rng.permutation(len(asked)))
        )
    still = kind == "picture"
    scene = sample_still(seed) if still else sample_scene(seed)
    return Sample(kind, (scene,), tuple(_dialogue(scene, still, rng)))


def _dialogue(scene: Scene, still: bool, rng: np.random.Generator) -> list[Turn]:
    """A caption and questions before or after it, or (one in four) twice as many questions
    alone."""
    alone = rng.random() < 0.25
    turns = some_questions(scene, still, rng, 2 * ASKED if alone else ASKED)
    if not alone:
        turns.insert(0 if rng.random() < 0.6 else len(turns), describe(scene, rng, still))
    return turns


def some_questions(scene: Scene, still: bool, rng: np.random.Generator, count: int) -> list[Turn]:
    """Different questions, all families alike often, one time in four ended by a follow-up."""
    pools = [
        [turn for turn in questions(scene, still) if turn.family == family] for family in FAMILIES
    ]
    pools = [[pool[int(i)] for i in rng.permutation(len(pool))] for pool in pools]
    turns: list[Turn] = []
    while len(turns) < count and any(pools):
        pool = pools[int(rng.integers(len(pools)))]
        if pool:
            turns.append(pool.pop())
    chained = follow_ups(scene, still)
    if chained and rng.random() < 0.25:
        turns += chained[int(rng.integers(len(chained)))]
    return turns
