"""Questions with long answers that depend on a small part of the clip.

Every question names a place: a text, an ordinal, or an appearance. The answer is a function of the
regions of its turn alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens_lab.world import wording
from draftlens_lab.world.captions import (
    action_phrase,
    marked_part,
    marked_still_caption,
    shown_value,
)
from draftlens_lab.world.dialogue import Turn, differences
from draftlens_lab.world.reel import Reel
from draftlens_lab.world.regions import ALL_CELLS, PLACE_CELLS, STRIP_CELLS, Region
from draftlens_lab.world.scene import PLACES, Scene, Shot, Text, Thing


@dataclass(frozen=True)
class FocusTurn(Turn):
    """A turn with an answer that is visible in some regions."""

    regions: tuple[Region, ...] = ()
    form: str = ""


def focus_turns(reel: Reel) -> dict[str, list[FocusTurn]]:
    """Every focus question about a reel, by form."""
    shots = reel.scene.shots
    named = {"first": 0, "second": 1, "last": len(shots) - 1}
    return {
        "word": [_by_text(reel, index) for index in range(len(shots))],
        "after": [_after(reel, index) for index in range(len(shots) - 1)],
        "hero": [
            appearances_turn(reel, reel.hero, f"Tell what the {_hero_name(reel)} does, {_FROM_TO}.")
        ],
        "ordinal": [
            _part(reel, index, f"Describe the {name} shot.", "ordinal")
            for name, index in named.items()
        ],
        "compare": [
            _comparison(reel, first, second, named)
            for first, second in (("first", "second"), ("first", "last"), ("second", "last"))
        ],
    }


def appearances_turn(
    reel: Reel, appearances: Sequence[tuple[int, Thing]], question: str
) -> FocusTurn:
    """The question for what a thing does in each shot in which it appears.

    Args:
        appearances: for each of these shots its index and the thing in it, in order of time.
    """
    sentences = []
    regions = []
    for number, (index, thing) in enumerate(appearances):
        shot = reel.scene.shots[index]
        sentences.append(_appearance(thing, shot, wording.TURNS[min(number, 1)]))
        regions.append(_region(shot, PLACE_CELLS[thing.place]))
    return FocusTurn(question, " ".join(sentences), "focus", tuple(regions), "hero")


def place_turn(reel: Reel, index: int, thing: Thing) -> FocusTurn:
    """The question for one thing of a shot."""
    shot = reel.scene.shots[index]
    question = f"What is at the {thing.place} in the shot with {_named_text(reel.texts[index])}?"
    answer = f"{_look(thing).capitalize()}."
    return FocusTurn(question, answer, "focus", (_region(shot, PLACE_CELLS[thing.place]),), "place")


def needle_turns(reel: Reel) -> list[FocusTurn]:
    """The questions about the needle of a reel; none without a needle."""
    if reel.scene.secret is not None:
        return _secret_turns(reel.scene.secret)
    return [_insert_turn(insert) for insert in reel.scene.inserts]


def chats(reel: Reel) -> list[tuple[FocusTurn, FocusTurn]]:
    """Pairs of turns, of which the second is a focus question about the first answer."""
    pairs = []
    for index in range(len(reel.scene.shots) - 1):
        follow_up = _part(reel, index + 1, "What happens after this?", "after this")
        pairs.append((_by_text(reel, index), _of_chat(follow_up)))
    pairs.append(_hero_chat(reel))
    for ordinal, index in (("second", 1), ("last", len(reel.scene.shots) - 1)):
        question = f"Describe the shot with the {ordinal} of them."
        pairs.append((_list_of_texts(reel), _of_chat(_part(reel, index, question, "of them"))))
    return pairs


def spot_turns(first: Scene, second: Scene) -> list[FocusTurn]:
    """Questions about two pictures that differ in one thing, and what each of them shows."""
    before = {thing.place: thing for thing in first.shots[0].things}
    after = {thing.place: thing for thing in second.shots[0].things}
    changed = [place for place in PLACES if before.get(place) != after.get(place)]
    regions = tuple(Region(0.0, 1.0, PLACE_CELLS[place]) for place in changed)
    turns = [
        FocusTurn(turn.question, turn.marked_answer, turn.family, regions, turn.family)
        for turn in differences(first, second)
    ]
    turns.append(_compared_pictures(first.shots[0], second.shots[0]))
    for name, scene, start in (("first", first, 0.0), ("second", second, 0.5)):
        question = f"Describe the {name} image."
        answer = marked_still_caption(scene)
        turns.append(
            FocusTurn(question, answer, "pairs", (Region(start, start + 0.5),), "one of two")
        )
    return turns


_FROM_TO = "from entering to leaving"


def _region(shot: Shot, cells: tuple[int, ...] = ALL_CELLS) -> Region:
    return Region(shot.start, shot.end, cells)


def _named_text(text: Text) -> str:
    return f"the {text.kind} {shown_value(text)}"


def _part(reel: Reel, index: int, question: str, form: str) -> FocusTurn:
    shot = reel.scene.shots[index]
    answer = marked_part(shot, reel.texts[index])
    return FocusTurn(question, answer, "focus", (_region(shot),), form)


def _by_text(reel: Reel, index: int) -> FocusTurn:
    question = f"Describe the shot with {_named_text(reel.texts[index])}."
    return _part(reel, index, question, "word")


def _after(reel: Reel, index: int) -> FocusTurn:
    text = reel.texts[index]
    part = _part(reel, index + 1, f"What happens after {shown_value(text)} is shown?", "after")
    named = _region(reel.scene.shots[index], STRIP_CELLS)
    return FocusTurn(part.question, part.marked_answer, "focus", (named, *part.regions), "after")


def _hero_name(reel: Reel) -> str:
    _, hero = reel.hero[0]
    return f"{hero.colour} {hero.shape}"


def _appearance(thing: Thing, shot: Shot, turn: str) -> str:
    return wording.fill(
        wording.HERO,
        turn=turn,
        does=action_phrase(thing),
        place=thing.place,
        pattern=shot.pattern,
        background=shot.background,
    )


def _comparison(reel: Reel, first: str, second: str, named: dict[str, int]) -> FocusTurn:
    shots = [reel.scene.shots[named[name]] for name in (first, second)]
    openings = [
        wording.fill(
            wording.COMPARED,
            which=name,
            count=wording.AMOUNTS[len(shot.things)],
            pattern=shot.pattern,
            background=shot.background,
        )
        for name, shot in zip((first, second), shots, strict=True)
    ]
    answer = " ".join([*openings, *_changes(*shots)])
    regions = tuple(_region(shot) for shot in shots)
    question = f"Compare the {first} shot with the {second}."
    return FocusTurn(question, answer, "focus", regions, "compare")


def _changes(first: Shot, second: Shot) -> list[str]:
    before = {thing.place: thing for thing in first.things}
    after = {thing.place: thing for thing in second.things}
    return [
        wording.fill(
            wording.BEFORE_AND_AFTER,
            place=place,
            before=_look(before.get(place)),
            after=_look(after.get(place)),
        )
        for place in PLACES
        if place in before or place in after
    ]


def _look(thing: Thing | None) -> str:
    if thing is None:
        return f"[{wording.NOTHING}]"
    return f"a [{thing.texture}] [{thing.colour}] [{thing.shape}]"


def _compared_pictures(first: Shot, second: Shot) -> FocusTurn:
    return FocusTurn(
        "Compare the first image with the second.",
        " ".join(_changes(first, second)),
        "pairs",
        (Region(0.0, 1.0),),
        "compare",
    )


def _secret_turns(secret: Text) -> list[FocusTurn]:
    cells = ALL_CELLS if secret.carrier == "card" else STRIP_CELLS
    region = Region(secret.start, secret.end, cells)
    answers = {
        "What is the secret word?": f"The secret word is [{shown_value(secret)}].",
        "Where is the secret word?": f"It is on a [{secret.carrier}].",
    }
    return [
        FocusTurn(question, answer, "needle", (region,), f"secret {secret.carrier}")
        for question, answer in answers.items()
    ]


def _insert_turn(insert: Shot) -> FocusTurn:
    answer = marked_still_caption(Scene(0, (insert,), ()))
    region = Region(insert.start, insert.end)
    question = "What is in the picture on the card?"
    return FocusTurn(question, answer, "needle", (region,), "picture")


def _list_of_texts(reel: Reel) -> FocusTurn:
    listing = ", ".join(f"[{shown_value(text)}]" for text in reel.texts)
    regions = tuple(_region(shot, STRIP_CELLS) for shot in reel.scene.shots)
    return FocusTurn("In which order are the texts shown?", f"{listing}.", "focus", regions, "list")


def _hero_chat(reel: Reel) -> tuple[FocusTurn, FocusTurn]:
    first = place_turn(reel, *reel.hero[0])
    return first, _of_chat(appearances_turn(reel, reel.hero, f"What does it do, {_FROM_TO}?"))


def _of_chat(turn: FocusTurn) -> FocusTurn:
    return FocusTurn(turn.question, turn.marked_answer, "chat", turn.regions, turn.form)
