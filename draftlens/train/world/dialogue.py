"""Questions with one right answer each, about moving scenes (videos) and still ones (images)."""

from dataclasses import dataclass

import numpy as np

from draftlens.train.world.caption import NUMBERS, caption, does, look, still_caption
from draftlens.train.world.scene import PLACES, Scene, Thing

VIDEO_PROMPTS = ("Describe the video.", "What happens in the video?", "Describe this clip in detail.")
IMAGE_PROMPTS = ("Describe the image.", "What is in the picture?", "Describe this image in detail.")


@dataclass(frozen=True)
class Turn:
    """One question and its right answer."""

    question: str
    answer: str


def describe(scene: Scene, rng: np.random.Generator, still: bool) -> Turn:
    """A request for the whole caption, in one of its wordings; the first wording comes half of the time."""
    prompts = IMAGE_PROMPTS if still else VIDEO_PROMPTS
    pick = 0 if rng.random() < 0.5 else int(rng.integers(1, len(prompts)))
    return Turn(prompts[pick], still_caption(scene) if still else caption(scene))


def questions(scene: Scene, still: bool) -> list[Turn]:
    """Every short question that has one right answer."""
    count = NUMBERS[len(scene.things)]
    turns = [
        Turn("How many shapes are there?", f"There are {count} shapes."),
        Turn("What colour is the background?", f"The background is {scene.background}."),
    ]
    at = {thing.place: thing for thing in scene.things}
    for place in PLACES:
        answer = f"{look(at[place]).capitalize()}." if place in at else "There is nothing."
        turns.append(Turn(f"What is at the {place}?", answer))
    for thing in scene.things:
        turns += _about(thing, scene, still)
    return turns


def _about(thing: Thing, scene: Scene, still: bool) -> list[Turn]:
    turns = [
        Turn(f"Where is the {thing.colour} shape?", f"It is at the {thing.place}."),
        Turn(f"What shape is {thing.colour}?", f"The {thing.shape} is {thing.colour}."),
    ]
    if sum(other.shape == thing.shape for other in scene.things) == 1:
        turns.append(Turn(f"What colour is the {thing.shape}?", f"The {thing.shape} is {thing.colour}."))
    if not still:
        turns.append(Turn(f"What does the {thing.colour} shape do?", f"It {does(thing)}."))
    return turns
