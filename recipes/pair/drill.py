"""Many questions about one reel that need more than one look, and short ones about a clip.

"What happens after SHIP is shown?" needs the shot with SHIP and then the one after it; what a thing
does "from entering to leaving" needs one shot after the other, and scenes of training have no such
thing in yellow or orange; a picture in one frame of many is rarely asked about. Where only a few
questions are of these kinds, a model learns what a single look answers and guesses the rest. A
drill asks for the same steps in long and in short answers. The short forms are for training only:
their few tokens depend on nothing but the right look.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from draftlens_lab.world import sample_reel, sample_scene, sample_still
from draftlens_lab.world.captions import noun_phrase, shown_value
from draftlens_lab.world.dialogue import Turn, questions
from draftlens_lab.world.focus import (
    FocusTurn,
    appearances_turn,
    focus_turns,
    needle_turns,
    place_turn,
)
from draftlens_lab.world.reel import Reel, any_needle
from draftlens_lab.world.regions import PLACE_CELLS, STRIP_CELLS, Region
from draftlens_lab.world.samples import Sample
from draftlens_lab.world.scene import Thing

NEEDLE_SHARE = 0.8  # of the drills
PICTURE_SHARE = 0.85  # of the needles; other needles are learned sooner
QUIZ_TURNS = {"retrieval": 1, "ordering": 6, "counting": 4, "attribute": 12}


@dataclass(frozen=True)
class TurnCounts:
    """How many questions of each form a drill has at most.

    Args:
        following: for the text behind another one.
        after: for all that comes behind a text.
        one_look: that need one look.
        places: for one thing of a shot.
        appearances: for what a thing does, and as many for its texts.
        picture_places: for one thing in an inserted picture.
    """

    following: int
    after: int
    one_look: int
    places: int
    appearances: int
    picture_places: int


SHORT_REEL = TurnCounts(following=3, after=2, one_look=1, places=2, appearances=1, picture_places=4)
# A long reel costs as much as many answers, so it is asked more, and what is short.
LONG_REEL = TurnCounts(following=8, after=2, one_look=2, places=8, appearances=4, picture_places=4)
LONG = 64  # frames

Appearances = tuple[tuple[int, Thing], ...]  # of a look: indices of shots, and the thing there
Item = TypeVar("Item")


def draw_drill(seed: int, frames: int) -> Sample:
    """The drill of a seed: questions in a random order about one reel.

    Args:
        seed: seed of the reel and of the choice of questions.
        frames: number of frames, 16 or more.

    Raises:
        ConfigError: there are too few frames for a reel.
    """
    rng = np.random.default_rng([seed, 4])
    needle = None
    if rng.random() < NEEDLE_SHARE:
        needle = "picture" if rng.random() < PICTURE_SHARE else any_needle(rng)
    reel = sample_reel(seed, frames, needle)
    turns = _drill_turns(reel, LONG_REEL if frames >= LONG else SHORT_REEL, rng)
    return Sample("focus", (reel.scene,), tuple(_some(turns, len(turns), rng)), frames)


def _drill_turns(reel: Reel, counts: TurnCounts, rng: np.random.Generator) -> list[FocusTurn]:
    """Questions about one reel; those for its hero and for its needle are always among them."""
    forms = focus_turns(reel)
    one_look = [*forms["word"], *forms["ordinal"], *forms["compare"]]
    looks = other_appearances(reel)
    recurring = [each for each in looks if len(each) > 1] or looks
    return [
        *_some(next_turns(reel), counts.following, rng),
        *_some(forms["after"], counts.after, rng),
        *_some(one_look, counts.one_look, rng),
        *_some(place_turns(reel), counts.places, rng),
        *forms["hero"],
        texts_turn(reel, reel.hero),
        *(does_turn(reel, each) for each in _some(recurring, counts.appearances, rng)),
        *(texts_turn(reel, each) for each in _some(looks, counts.appearances, rng)),
        *needle_turns(reel),
        *_some(picture_turns(reel), counts.picture_places, rng),
    ]


def draw_quiz(seed: int, still: bool) -> Sample:
    """The quiz of a seed: short questions about one clip or picture.

    A caption tells what it needs from the picture in an order of its own. A question for one thing
    has to look for it. The question for the order of all texts is the last one, since its answer
    answers the other questions about texts.

    Args:
        seed: seed of the scene and of the choice of questions.
        still: whether the scene is a picture.
    """
    rng = np.random.default_rng([seed, 5])
    scene = sample_still(seed) if still else sample_scene(seed)
    chosen: list[Turn] = []
    for family, count in QUIZ_TURNS.items():
        turns = [turn for turn in questions(scene, still) if turn.family == family]
        chosen += _some(turns, count, rng)
    chosen = _some(chosen, len(chosen), rng)
    chosen.sort(key=lambda turn: turn.question.startswith("In which order"))
    return Sample("picture" if still else "clip", (scene,), tuple(chosen))


def next_turns(reel: Reel) -> list[FocusTurn]:
    """For each text but the last the question for the one after it."""
    turns = []
    for text, following in zip(reel.texts, reel.texts[1:], strict=False):
        named, answered = (Region(t.start, t.end, STRIP_CELLS) for t in (text, following))
        question = f"Which text is shown after {shown_value(text)}?"
        answer = f"It is [{shown_value(following)}]."
        turns.append(FocusTurn(question, answer, "focus", (named, answered), "next"))
    return turns


def place_turns(reel: Reel) -> list[FocusTurn]:
    """The questions for each thing of each shot."""
    return [
        place_turn(reel, index, thing)
        for index, shot in enumerate(reel.scene.shots)
        for thing in shot.things
    ]


def other_appearances(reel: Reel) -> list[Appearances]:
    """The appearances of each other look than the hero's, if no shot has two things of it."""
    _, hero = reel.hero[0]
    by_look: dict[tuple[str, str], list[tuple[int, Thing]]] = defaultdict(list)
    for index, shot in enumerate(reel.scene.shots):
        for thing in shot.things:
            by_look[thing.colour, thing.shape].append((index, thing))
    del by_look[hero.colour, hero.shape]
    return [
        tuple(appearances)
        for appearances in by_look.values()
        if len({index for index, _ in appearances}) == len(appearances)
    ]


def does_turn(reel: Reel, appearances: Appearances) -> FocusTurn:
    """The question for what a thing that is not the hero does."""
    _, thing = appearances[0]
    question = f"Tell what the {thing.colour} {thing.shape} does."
    return appearances_turn(reel, appearances, question)


def texts_turn(reel: Reel, appearances: Appearances) -> FocusTurn:
    """The question for the texts of the shots with a thing.

    Its regions are those of the thing and not those of the texts: all tokens of a shot tell its
    text, so one look at the thing is enough.
    """
    _, thing = appearances[0]
    listing = ", ".join(f"[{shown_value(reel.texts[index])}]" for index, _ in appearances)
    question = f"Which texts are shown with the {thing.colour} {thing.shape}?"
    regions = appearances_turn(reel, appearances, question).regions
    return FocusTurn(question, f"{listing}.", "focus", regions, "hero texts")


def picture_turns(reel: Reel) -> list[FocusTurn]:
    """The questions for each thing in the inserted picture of a reel; none without one."""
    turns = []
    for insert in reel.scene.inserts:
        for thing in insert.things:
            question = f"What is at the {thing.place} of the picture on the card?"
            answer = f"{noun_phrase(thing).capitalize()}."
            region = Region(insert.start, insert.end, PLACE_CELLS[thing.place])
            turns.append(FocusTurn(question, answer, "needle", (region,), "picture place"))
    return turns


def _some(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """Up to ``count`` different ones of the items, in a random order."""
    return [items[int(index)] for index in rng.permutation(len(items))[:count]]
