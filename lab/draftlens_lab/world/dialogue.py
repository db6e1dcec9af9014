"""Questions with one right answer each: about clips, pictures and pairs, and small talk.

The families of questions are those of VNBench where they apply: retrieval (find the needle),
ordering (the order of events) and counting.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftlens_lab.world import wording
from draftlens_lab.world.captions import (
    action_phrase,
    marked_caption,
    marked_still_caption,
    noun_phrase,
    shown_value,
)
from draftlens_lab.world.scene import PLACES, WORDS, Scene, Shot, Text, Thing

VIDEO_PROMPTS = (
    "Describe the video.",
    "What happens in the video?",
    "Describe this clip in detail.",
)
IMAGE_PROMPTS = ("Describe the image.", "What is in the picture?", "Describe this image in detail.")

_CORNERS = (("triangle", "three"), ("square", "four"), ("circle", "no"))
_OPPOSITES = (
    ("left", "right"),
    ("right", "left"),
    ("top", "bottom"),
    ("small", "large"),
    ("early", "late"),
    ("first", "last"),
)


@dataclass(frozen=True)
class Turn:
    """One question and its right answer.

    Attributes:
        question: the question.
        marked_answer: the answer, with brackets around what must be seen.
        family: the family of the question, such as "retrieval".
    """

    question: str
    marked_answer: str
    family: str

    @property
    def answer(self) -> str:
        """The answer without brackets."""
        return wording.unmark(self.marked_answer)


def describe(scene: Scene, rng: np.random.Generator, still: bool) -> Turn:
    """A request for the caption, in one of its wordings.

    The first wording is used half of the time.
    """
    prompts = IMAGE_PROMPTS if still else VIDEO_PROMPTS
    index = 0
    if rng.random() >= 0.5:
        index = int(rng.integers(1, len(prompts)))
    answer = marked_still_caption(scene) if still else marked_caption(scene)
    return Turn(prompts[index], answer, "caption")


def questions(scene: Scene, still: bool) -> list[Turn]:
    """Every question about a scene that has one right answer and needs no earlier turn."""
    turns = [*_retrieval(scene), *_counting(scene, still)]
    if not still:
        turns += _ordering(scene)
    turns += _attributes(scene, still)
    return turns


def follow_ups(scene: Scene, still: bool) -> list[tuple[Turn, Turn]]:
    """Pairs of turns, of which the second cannot be answered without the first one's answer."""
    pairs = []
    for shot, suffix in zip(scene.shots, _shot_suffixes(scene), strict=True):
        for thing in shot.things:
            if thing.changes_size:
                continue
            first = _attribute(
                f"What is at the {thing.place}{suffix}?", f"{noun_phrase(thing).capitalize()}."
            )
            pairs.append((first, _follow_up(thing, still)))
    return pairs


def differences(first: Scene, second: Scene) -> list[Turn]:
    """Questions about two pictures that differ in one thing.

    One asks for the difference, the other for the edit that turns the first into the second.
    """
    before = {thing.place: thing for thing in first.shots[0].things}
    after = {thing.place: thing for thing in second.shots[0].things}
    place = next(place for place in PLACES if before.get(place) != after.get(place))
    old = before[place]
    new = after.get(place)
    description = f"{noun_phrase(old).removeprefix('a ')} at the [{place}]"
    if new is None:
        difference = f"The {description} is [gone]."
        edit = f"[Remove] the {description}."
    else:
        difference = f"The {description} is now {noun_phrase(new)}."
        edit = f"[Turn] the {description} into {noun_phrase(new)}."
    return [
        Turn("What is different in the second image?", difference, "difference"),
        Turn("How was the first image edited?", edit, "edit"),
    ]


def small_talk(rng: np.random.Generator) -> Turn:
    kind = int(rng.integers(4))
    first, second = (int(n) for n in rng.integers(0, 4, size=2))
    if kind == 0:
        return _addition(first, second)
    if kind == 1:
        return _corners(rng)
    if kind == 2:
        return _opposite(rng)
    return _capitals(rng)


def _addition(first: int, second: int) -> Turn:
    question = f"How much is {wording.AMOUNTS[first]} and {wording.AMOUNTS[second]}?"
    return Turn(question, f"It is {wording.AMOUNTS[first + second]}.", "text only")


def _corners(rng: np.random.Generator) -> Turn:
    shape, corners = _CORNERS[int(rng.integers(len(_CORNERS)))]
    answer = f"A {shape} has {corners} corners."
    return Turn(f"How many corners has a {shape}?", answer, "text only")


def _opposite(rng: np.random.Generator) -> Turn:
    word, opposite = _OPPOSITES[int(rng.integers(len(_OPPOSITES)))]
    return Turn(f"What is the opposite of {word}?", f"It is {opposite}.", "text only")


def _capitals(rng: np.random.Generator) -> Turn:
    word = WORDS[int(rng.integers(len(WORDS)))]
    return Turn(f"Write {word} in capital letters.", f"{word.upper()}.", "text only")


def _follow_up(thing: Thing, still: bool) -> Turn:
    if still:
        return Turn("Is it small or large?", f"It is [{thing.size}].", "follow-up")
    return Turn("And what does it do?", f"It {action_phrase(thing)}.", "follow-up")


def _shot_suffixes(scene: Scene) -> list[str]:
    """For each shot, the words that refer to it at the end of a question.

    They are empty in a scene with one shot.
    """
    if len(scene.shots) == 1:
        return [""]
    return [f" in the {ordinal} shot" for ordinal in wording.ORDINALS]


def _retrieval(scene: Scene) -> list[Turn]:
    turns = []
    if scene.secret:
        answer = f"The secret word is [{shown_value(scene.secret)}]."
        turns.append(Turn("What is the secret word?", answer, "retrieval"))
    for kind in ("word", "number"):
        texts = [text for text in scene.texts if text.kind == kind]
        if len(texts) == 1:
            turns += _text_retrieval(texts[0])
    return turns


def _text_retrieval(text: Text) -> list[Turn]:
    """Questions about the only word, or the only number, in colour."""
    value = f"It is the {text.kind} [{shown_value(text)}]."
    colour = f"In [{text.colour}] letters."
    return [
        Turn(f"Which {text.kind} is shown in colour?", value, "retrieval"),
        Turn(f"In which colour is the {text.kind} shown?", colour, "retrieval"),
    ]


def _ordering(scene: Scene) -> list[Turn]:
    turns = []
    values = [shown_value(text) for text in scene.texts]
    if len(values) > 1:
        listing = ", ".join(f"[{value}]" for value in values)
        turns += [
            _order("In which order are the texts shown?", f"{listing}."),
            _order("Which text is shown first?", f"[{values[0]}] is shown first."),
            _order("Which text is shown last?", f"[{values[-1]}] is shown last."),
        ]
    for before, after in pairwise(values):
        turns.append(
            _order(f"Which text comes after {before}?", f"[{after}] comes after {before}.")
        )
    if len(scene.shots) > 1:
        first, second = (shot.background for shot in scene.shots)
        turns.append(
            _order(
                "Which background comes first and which second?",
                f"First it is [{first}], then it is [{second}].",
            )
        )
    return turns


def _counting(scene: Scene, still: bool) -> list[Turn]:
    turns = []
    for shot, suffix in zip(scene.shots, _shot_suffixes(scene), strict=True):
        answer = f"There are [{wording.AMOUNTS[len(shot.things)]}] shapes."
        turns.append(Turn(f"How many shapes are there{suffix}?", answer, "counting"))
    if still:
        return turns
    amounts = {
        "How many texts are shown?": len(scene.texts),
        "How many shots has the video?": len(scene.shots),
        "How many shapes enter the picture?": _count_motion(scene, "enter"),
        "How many shapes leave the picture?": _count_motion(scene, "leave"),
    }
    for question, amount in amounts.items():
        answer = f"The answer is [{wording.AMOUNTS[amount]}]."
        turns.append(Turn(question, answer, "counting"))
    return turns


def _count_motion(scene: Scene, motion: str) -> int:
    return sum(thing.motion == motion for shot in scene.shots for thing in shot.things)


def _attributes(scene: Scene, still: bool) -> list[Turn]:
    turns = []
    for shot, suffix in zip(scene.shots, _shot_suffixes(scene), strict=True):
        answer = f"It is a [{shot.pattern}] [{shot.background}] background."
        turns.append(_attribute(f"Which background is there{suffix}?", answer))
        things_by_place = {thing.place: thing for thing in shot.things}
        for place in PLACES:
            answer = "There is [nothing]."
            if place in things_by_place:
                answer = f"{noun_phrase(things_by_place[place]).capitalize()}."
            turns.append(_attribute(f"What is at the {place}{suffix}?", answer))
        for thing in shot.things:
            turns += _thing_attributes(thing, shot, suffix, still)
    return turns


def _thing_attributes(thing: Thing, shot: Shot, suffix: str, still: bool) -> list[Turn]:
    colour = thing.colour
    shape = thing.shape
    turns = [
        _attribute(f"Where is the {colour} shape{suffix}?", f"It is at the [{thing.place}]."),
        _attribute(f"What shape is {colour}{suffix}?", f"The [{shape}] is {colour}."),
    ]
    same_shape = [candidate for candidate in shot.things if candidate.shape == shape]
    if len(same_shape) == 1:
        question = f"What colour is the {shape}{suffix}?"
        turns.append(_attribute(question, f"The {shape} is [{colour}]."))
    if not still:
        question = f"What does the {colour} shape do{suffix}?"
        turns.append(_attribute(question, f"It {action_phrase(thing)}."))
    return turns


def _order(question: str, answer: str) -> Turn:
    return Turn(question, answer, "ordering")


def _attribute(question: str, answer: str) -> Turn:
    return Turn(question, answer, "attribute")
