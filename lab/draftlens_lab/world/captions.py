"""Captions of scenes.

A caption is a function of what is visible in the scene, so that exactly one caption is right.
"""

import re

from draftlens_lab.world import wording
from draftlens_lab.world.scene import Scene, Shot, Text, Thing


def caption(scene: Scene) -> str:
    """The one right answer to "Describe the video."."""
    return wording.unmark(marked_caption(scene))


def still_caption(scene: Scene) -> str:
    """The one right answer to "Describe the image."."""
    return wording.unmark(marked_still_caption(scene))


def marked_caption(scene: Scene) -> str:
    """The caption of a clip, with brackets around what must be seen."""
    sentences = [wording.ONE_SHOT if len(scene.shots) == 1 else wording.TWO_SHOTS]
    for ordinal, shot in zip(wording.ORDINALS, scene.shots, strict=False):
        sentences += _shot_sentences(shot, ordinal)
    sentences += _text_sentences(scene.texts)
    return " ".join(sentences)


def marked_still_caption(scene: Scene) -> str:
    """The caption of a picture, with brackets around what must be seen."""
    (shot,) = scene.shots
    opening = wording.fill(
        wording.STILL,
        count=wording.AMOUNTS[len(shot.things)],
        pattern=shot.pattern,
        background=shot.background,
    )
    things = [_still_thing_sentence(thing) for thing in shot.things]
    texts = [_still_text_sentence(text) for text in scene.texts]
    return " ".join([opening, *things, *texts])


def seen_spans(marked: str) -> list[tuple[int, int]]:
    """Where the unmarked text states what must be seen.

    Args:
        marked: a text with brackets around what must be seen.

    Returns:
        Half-open ranges of characters of the unmarked text.
    """
    spans = []
    for number, match in enumerate(re.finditer(r"\[([^\]]*)\]", marked)):
        # Each earlier pair of brackets is missing in the unmarked text.
        start = match.start() - 2 * number
        spans.append((start, start + len(match[1])))
    return spans


def action_phrase(thing: Thing) -> str:
    """A verb phrase for the motion of a thing, with brackets: "[moves] to the [left]"."""
    key = f"{thing.motion} {thing.when}".strip()
    return wording.ACTIONS[key].format(side=thing.side)


def noun_phrase(thing: Thing) -> str:
    """A noun phrase for a thing, with brackets: "a [striped] [red] [circle]"."""
    return f"a [{thing.texture}] [{thing.colour}] [{thing.shape}]"


def shown_value(text: Text) -> str:
    """A text as it appears on the screen."""
    return text.value.upper()


def marked_part(shot: Shot, text: Text) -> str:
    """The description of one shot of a reel and of its text, with brackets."""
    opening = wording.fill(
        wording.PART,
        count=wording.AMOUNTS[len(shot.things)],
        pattern=shot.pattern,
        background=shot.background,
        camera=wording.CAMERA_ACTIONS[shot.camera],
    )
    things = [_thing_sentence(thing) for thing in shot.things]
    return " ".join([opening, *things, _closing_sentence(shot), _part_text_sentence(text)])


def _shot_sentences(shot: Shot, ordinal: str) -> list[str]:
    opening = wording.fill(
        wording.SHOT,
        ordinal=ordinal,
        count=wording.AMOUNTS[len(shot.things)],
        pattern=shot.pattern,
        background=shot.background,
        camera=wording.CAMERA_ACTIONS[shot.camera],
    )
    things = [_thing_sentence(thing) for thing in shot.things]
    return [opening, *things, _closing_sentence(shot)]


def _closing_sentence(shot: Shot) -> str:
    remaining = sum(thing.motion != "leave" for thing in shot.things)
    if remaining == len(shot.things):
        return wording.ALL_LEFT
    return wording.fill(wording.SOME_LEFT, left=wording.AMOUNTS[remaining])


def _thing_sentence(thing: Thing) -> str:
    if thing.changes_size:
        template = wording.CHANGES
    elif thing.size == "large":
        template = wording.LARGE
    else:
        template = wording.SMALL
    return wording.fill(template, **_look_fields(thing), does=action_phrase(thing))


def _still_thing_sentence(thing: Thing) -> str:
    template = wording.STILL_LARGE if thing.size == "large" else wording.STILL_SMALL
    return wording.fill(template, **_look_fields(thing))


def _look_fields(thing: Thing) -> dict[str, str]:
    return {
        "place": thing.place,
        "size": thing.size,
        "texture": thing.texture,
        "colour": thing.colour,
        "shape": thing.shape,
    }


def _text_sentences(texts: tuple[Text, ...]) -> list[str]:
    if not texts:
        return [wording.NO_TEXT]
    first_turn, later_turn = wording.TURNS
    first = _text_sentence(texts[0], first_turn)
    return [first, *(_text_sentence(text, later_turn) for text in texts[1:])]


def _text_sentence(text: Text, turn: str) -> str:
    value = shown_value(text)
    if text.kind == "secret":
        return wording.fill(
            wording.SECRET_TEXT, turn=turn, kind="secret word", word=value, carrier=text.carrier
        )
    if text.kind == "word":
        return wording.fill(wording.WORD_TEXT, turn=turn, kind="word", ink=text.colour, word=value)
    return wording.fill(
        wording.NUMBER_TEXT, turn=turn, kind="number", ink=text.colour, number=value
    )


def _part_text_sentence(text: Text) -> str:
    value = shown_value(text)
    if text.kind == "word":
        return wording.fill(wording.PART_WORD, kind="word", ink=text.colour, word=value)
    return wording.fill(wording.PART_NUMBER, kind="number", ink=text.colour, number=value)


def _still_text_sentence(text: Text) -> str:
    value = shown_value(text)
    if text.kind == "word":
        return wording.fill(wording.STILL_WORD, kind="word", ink=text.colour, word=value)
    return wording.fill(wording.STILL_NUMBER, kind="number", ink=text.colour, number=value)
