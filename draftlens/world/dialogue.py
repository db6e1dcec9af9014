"""Questions with one right answer each: about clips, pictures, pairs of pictures, and about nothing
to be seen.

Families are VNBench's where they fit: retrieval (find the needle), ordering (what came when),
counting.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftlens.world import wording as w
from draftlens.world.caption import does, look, shown_value, told_caption, told_still
from draftlens.world.scene import PLACES, WORDS, Scene, Shot, Thing

VIDEO_PROMPTS = (
    "Describe the video.",
    "What happens in the video?",
    "Describe this clip in detail.",
)
IMAGE_PROMPTS = ("Describe the image.", "What is in the picture?", "Describe this image in detail.")


@dataclass(frozen=True)
class Turn:
    """One question and its right answer; ``told`` is the answer with marks around what had to be
    seen."""

    question: str
    told: str
    family: str

    @property
    def answer(self) -> str:
        return w.unmark(self.told)


def describe(scene: Scene, rng: np.random.Generator, still: bool) -> Turn:
    """A request for the whole caption, in one of its wordings; the first wording comes half of the
    time."""
    prompts = IMAGE_PROMPTS if still else VIDEO_PROMPTS
    pick = 0 if rng.random() < 0.5 else int(rng.integers(1, len(prompts)))
    return Turn(prompts[pick], told_still(scene) if still else told_caption(scene), "caption")


def questions(scene: Scene, still: bool) -> list[Turn]:
    """Every question about a scene that has one right answer and stands by itself."""
    ordering = [] if still else _ordering(scene)
    return [*_retrieval(scene), *_counting(scene, still), *ordering, *_attributes(scene, still)]


def follow_ups(scene: Scene, still: bool) -> list[tuple[Turn, Turn]]:
    """Pairs of turns of which the second cannot be answered without the first one's answer."""
    pairs = []
    for shot, where in zip(scene.shots, _wheres(scene), strict=True):
        for thing in shot.things:
            first = Turn(
                f"What is at the {thing.place}{where}?", f"{look(thing).capitalize()}.", "attribute"
            )
            asked = (
                "Is it small or large?" if still or thing.changes_size else "And what does it do?"
            )
            if not (thing.changes_size and asked.startswith("Is")):
                told = f"It is [{thing.size}]." if asked.startswith("Is") else f"It {does(thing)}."
                pairs.append((first, Turn(asked, told, "follow-up")))
    return pairs


def differences(first: Scene, second: Scene) -> list[Turn]:
    """What is asked about two pictures that differ in one thing: the difference, and the edit that
    makes it."""
    before = {thing.place: thing for thing in first.shots[0].things}
    after = {thing.place: thing for thing in second.shots[0].things}
    place = next(place for place in PLACES if before.get(place) != after.get(place))
    old, new = before[place], after.get(place)
    which = f"the {look(old)[2:]} at the [{place}]"
    change, edit = "is [gone]", f"[Remove] {which}"
    if new is not None:
        change, edit = f"is now {look(new)}", f"[Turn] {which} into {look(new)}"
    return [
        Turn("What is different in the second image?", f"T{which[1:]} {change}.", "difference"),
        Turn("How was the first image edited?", f"{edit}.", "edit"),
    ]


def small_talk(rng: np.random.Generator) -> Turn:
    """A question that needs no picture."""
    kind = int(rng.integers(4))
    a, b = (int(n) for n in rng.integers(0, 4, size=2))
    if kind == 0:
        return Turn(
            f"How much is {w.AMOUNTS[a]} and {w.AMOUNTS[b]}?",
            f"It is {w.AMOUNTS[a + b]}.",
            "text only",
        )
    if kind == 1:
        shape, sides = (("triangle", "three"), ("square", "four"), ("circle", "no"))[
            int(rng.integers(3))
        ]
        return Turn(
            f"How many corners has a {shape}?", f"A {shape} has {sides} corners.", "text only"
        )
    if kind == 2:
        pairs = {
            "left": "right",
            "right": "left",
            "top": "bottom",
            "small": "large",
            "early": "late",
            "first": "last",
        }
        word = list(pairs)[int(rng.integers(len(pairs)))]
        return Turn(f"What is the opposite of {word}?", f"It is {pairs[word]}.", "text only")
    word = WORDS[int(rng.integers(len(WORDS)))]
    return Turn(f"Write {word} in capital letters.", f"{word.upper()}.", "text only")


def _wheres(scene: Scene) -> list[str]:
    """How questions point at each shot: not at all where there is one."""
    return [""] if len(scene.shots) == 1 else [f" in the {ordinal} shot" for ordinal in w.ORDINALS]


def _retrieval(scene: Scene) -> list[Turn]:
    turns = []
    if scene.secret:
        value = shown_value(scene.secret)
        turns.append(
            Turn("What is the secret word?", f"The secret word is [{value}].", "retrieval")
        )
    for kind in ("word", "number"):
        shown = [text for text in scene.texts if text.kind == kind]
        if len(shown) == 1:
            value = shown_value(shown[0])
            turns.append(
                Turn(
                    f"Which {kind} is shown in colour?", f"It is the {kind} [{value}].", "retrieval"
                )
            )
            turns.append(
                Turn(
                    f"In which colour is the {kind} shown?",
                    f"In [{shown[0].colour}] letters.",
                    "retrieval",
                )
            )
    return turns


def _ordering(scene: Scene) -> list[Turn]:
    shown = [shown_value(text) for text in scene.texts]
    turns = []
    if len(shown) > 1:
        listed = ", ".join(f"[{value}]" for value in shown)
        turns.append(Turn("In which order are the texts shown?", f"{listed}.", "ordering"))
        turns.append(
            Turn("Which text is shown first?", f"[{shown[0]}] is shown first.", "ordering")
        )
        turns.append(Turn("Which text is shown last?", f"[{shown[-1]}] is shown last.", "ordering"))
    for before, after in pairwise(shown):
        turns.append(
            Turn(
                f"Which text comes after {before}?", f"[{after}] comes after {before}.", "ordering"
            )
        )
    if len(scene.shots) > 1:
        first, second = (shot.background for shot in scene.shots)
        told = f"First it is [{first}], then it is [{second}]."
        turns.append(Turn("Which background comes first and which second?", told, "ordering"))
    return turns


def _counting(scene: Scene, still: bool) -> list[Turn]:
    turns = []
    for shot, where in zip(scene.shots, _wheres(scene), strict=True):
        count = w.AMOUNTS[len(shot.things)]
        turns.append(
            Turn(f"How many shapes are there{where}?", f"There are [{count}] shapes.", "counting")
        )
    if still:
        return turns
    amounts = {
        "How many texts are shown?": len(scene.texts),
        "How many shots has the video?": len(scene.shots),
        "How many shapes enter the picture?": _doing(scene, "enter"),
        "How many shapes leave the picture?": _doing(scene, "leave"),
    }
    for question, amount in amounts.items():
        turns.append(Turn(question, f"The answer is [{w.AMOUNTS[amount]}].", "counting"))
    return turns


def _doing(scene: Scene, motion: str) -> int:
    return sum(thing.motion == motion for shot in scene.shots for thing in shot.things)


def _attributes(scene: Scene, still: bool) -> list[Turn]:
    turns = []
    for shot, where in zip(scene.shots, _wheres(scene), strict=True):
        told = f"It is a [{shot.pattern}] [{shot.background}] background."
        turns.append(Turn(f"Which background is there{where}?", told, "attribute"))
        at = {thing.place: thing for thing in shot.things}
        for place in PLACES:
            told = f"{look(at[place]).capitalize()}." if place in at else "There is [nothing]."
            turns.append(Turn(f"What is at the {place}{where}?", told, "attribute"))
        for thing in shot.things:
            turns += _about(thing, shot, where, still)
    return turns


def _about(thing: Thing, shot: Shot, where: str, still: bool) -> list[Turn]:
    shape = Turn(
        f"What shape is {thing.colour}{where}?",
        f"The [{thing.shape}] is {thing.colour}.",
        "attribute",
    )
    place = Turn(
        f"Where is the {thing.colour} shape{where}?", f"It is at the [{thing.place}].", "attribute"
    )
    turns = [place, shape]
    if sum(other.shape == thing.shape for other in shot.things) == 1:
        told = f"The {thing.shape} is [{thing.colour}]."
        turns.append(Turn(f"What colour is the {thing.shape}{where}?", told, "attribute"))
    if not still:
        turns.append(
            Turn(
                f"What does the {thing.colour} shape do{where}?", f"It {does(thing)}.", "attribute"
            )
        )
    return turns
