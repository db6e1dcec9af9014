"""Training samples: scenes and a dialogue about them, with one right answer for each turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from draftlens_lab.world.dialogue import (
    Turn,
    describe,
    differences,
    follow_ups,
    questions,
    small_talk,
)
from draftlens_lab.world.focus import FocusTurn, chats, focus_turns, needle_turns, spot_turns
from draftlens_lab.world.reel import Reel, any_needle, sample_reel
from draftlens_lab.world.sample import sample_pair, sample_scene, sample_still
from draftlens_lab.world.scene import Scene

FIRST_KINDS = ("clip", "picture", "pair", "talk")  # those that the pair's tokenizer was made from
REEL_KINDS = ("focus", "needle", "chat")  # about clips of 4 to 16 shots
KINDS = (*FIRST_KINDS, *REEL_KINDS, "spot")
MEDIA = {
    "clip": "video",
    "picture": "image",
    "pair": "images",
    "talk": "none",
    "focus": "video",
    "needle": "video",
    "chat": "video",
    "spot": "images",
}
"""What a sample of each kind shows: a video, an image, two images, or nothing."""

# Families of questions, equally likely for any number of questions in them.
FAMILIES = ("retrieval", "ordering", "counting", "attribute")
QUESTIONS = 5  # number of questions beside a caption
TALK_TURNS = 8  # number of turns of a dialogue without pictures
FOCUS_TURNS = 6  # number of focus questions about a reel
NEEDLE_TURNS = 2  # number of focus questions beside those about a needle
CHATS = 2  # number of chats about a reel, of two turns each
REEL_FRAMES = 64  # usual number of frames of a reel

T = TypeVar("T", bound=Turn)


@dataclass(frozen=True)
class Sample:
    """One dialogue.

    Attributes:
        kind: of `KINDS`.
        scenes: the clip, the picture or the two pictures; empty for the kind "talk".
        turns: the questions and their answers.
        frames: the number of frames that a reel is made for; 0 for scenes of other kinds, which
            can be shown as any number.
    """

    kind: str
    scenes: tuple[Scene, ...]
    turns: tuple[Turn, ...]
    frames: int = 0

    @property
    def media(self) -> str:
        """What it shows, of the values of `MEDIA`."""
        return MEDIA[self.kind]


def draw(kind: str, seed: int, frames: int = REEL_FRAMES) -> Sample:
    """The sample of a kind for a seed. Seeds from HELD_OUT on give held-out scenes.

    Args:
        frames: number of frames of a reel, 16 or more; other kinds do not depend on it.
    """
    rng = np.random.default_rng([seed, 2])
    if kind in REEL_KINDS:
        reel, turns = _reel_dialogue(kind, seed, frames, rng)
        return Sample(kind, (reel.scene,), tuple(turns), frames)
    if kind == "spot":
        pictures = sample_pair(seed)
        return Sample(kind, pictures, tuple(_shuffled(spot_turns(*pictures), rng)))
    if kind == "talk":
        return Sample(kind, (), tuple(small_talk(rng) for _ in range(TALK_TURNS)))
    if kind == "pair":
        first, second = sample_pair(seed)
        return Sample(kind, (first, second), tuple(_shuffled(differences(first, second), rng)))
    if kind == "picture":
        picture = sample_still(seed)
        return Sample(kind, (picture,), tuple(_dialogue(picture, rng, still=True)))
    clip = sample_scene(seed)
    return Sample(kind, (clip,), tuple(_dialogue(clip, rng, still=False)))


def _reel_dialogue(
    kind: str, seed: int, frames: int, rng: np.random.Generator
) -> tuple[Reel, list[FocusTurn]]:
    needle = any_needle(rng) if kind == "needle" or rng.random() < 0.5 else None
    reel = sample_reel(seed, frames, needle)
    if kind == "chat":
        pairs = chats(reel)
        chosen = rng.permutation(len(pairs))[:CHATS]
        return reel, [turn for index in chosen for turn in pairs[int(index)]]
    needles = needle_turns(reel)
    if kind == "needle":
        return reel, [*needles, *_draw_focus(reel, rng, NEEDLE_TURNS)]
    return reel, _shuffled([*_draw_focus(reel, rng, FOCUS_TURNS - len(needles)), *needles], rng)


def _draw_focus(reel: Reel, rng: np.random.Generator, count: int) -> list[FocusTurn]:
    """Different focus questions. Each form is equally likely, but half are about a text's shot."""
    forms = focus_turns(reel)
    pools = {form: _shuffled(turns, rng) for form, turns in forms.items()}
    chosen: list[FocusTurn] = []
    while len(chosen) < count and any(pools.values()):
        form = "word"
        if rng.random() < 0.5:
            form = list(pools)[int(rng.integers(len(pools)))]
        if pools[form]:
            chosen.append(pools[form].pop())
    return chosen


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
    turns = questions(scene, still)
    pools = []
    for family in FAMILIES:
        pools.append(_shuffled([turn for turn in turns if turn.family == family], rng))
    return pools


def _shuffled(turns: Sequence[T], rng: np.random.Generator) -> list[T]:
    return [turns[int(index)] for index in rng.permutation(len(turns))]
