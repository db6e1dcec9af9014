"""What is said about a scene: a function of what can be seen in it, so that a right answer is one
answer."""

import re

from draftlens.world import wording as w
from draftlens.world.scene import Scene, Shot, Text, Thing


def caption(scene: Scene) -> str:
    """The one right answer to "Describe the video."."""
    return w.unmark(told_caption(scene))


def still_caption(scene: Scene) -> str:
    """The one right answer to "Describe the image."."""
    return w.unmark(told_still(scene))


def seen_spans(told: str) -> list[tuple[int, int]]:
    """Where the unmarked text says what had to be seen: half-open ranges of characters."""
    spans = []
    for number, match in enumerate(re.finditer(r"\[([^\]]*)\]", told)):
        start = (
            match.start() - 2 * number
        )  # each mark before it is two brackets that unmarking takes away
        spans.append((start, start + len(match[1])))
    return spans


def told_caption(scene: Scene) -> str:
    """The caption with marks around what had to be seen."""
    said = [w.ONE_SHOT if len(scene.shots) == 1 else w.TWO_SHOTS]
    for ordinal, shot in zip(w.ORDINALS, scene.shots, strict=False):
        said += _shot(shot, ordinal)
    return " ".join([*said, *_texts(scene.texts)])


def told_still(scene: Scene) -> str:
    """The caption of a picture with marks around what had to be seen."""
    (shot,) = scene.shots
    count = w.AMOUNTS[len(shot.things)]
    said = [w.tell(w.STILL, count=count, pattern=shot.pattern, background=shot.background)]
    said += [_still_thing(thing) for thing in shot.things]
    return " ".join([*said, *(_still_text(text) for text in scene.texts)])


def does(thing: Thing) -> str:
    """What the thing does, as a verb phrase, with marks."""
    return w.DOES[f"{thing.motion} {thing.when}".strip()].format(side=thing.side)


def look(thing: Thing) -> str:
    """The thing with its article, with marks: "a [striped] [red] [circle]"."""
    return f"a [{thing.texture}] [{thing.colour}] [{thing.shape}]"


def text_kind(text: Text) -> str:
    """How a text is called: "word", "number" or "secret word"."""
    return "secret word" if text.kind == "secret" else text.kind


def shown_value(text: Text) -> str:
    """A text as it stands on the screen."""
    return text.value.upper()


def _shot(shot: Shot, ordinal: str) -> list[str]:
    count = w.AMOUNTS[len(shot.things)]
    opening = w.tell(
        w.SHOT,
        ordinal=ordinal,
        count=count,
        pattern=shot.pattern,
        background=shot.background,
        camera=w.CAMERA[shot.camera],
    )
    left = sum(thing.motion != "leave" for thing in shot.things)
    closing = w.ALL_LEFT if left == len(shot.things) else w.tell(w.SOME_LEFT, left=w.AMOUNTS[left])
    return [opening, *(_thing(thing) for thing in shot.things), closing]


def _thing(thing: Thing) -> str:
    template = w.CHANGES if thing.changes_size else w.LARGE if thing.size == "large" else w.SMALL
    return w.tell(template, **_looks(thing), does=does(thing))


def _still_thing(thing: Thing) -> str:
    return w.tell(w.STILL_LARGE if thing.size == "large" else w.STILL_SMALL, **_looks(thing))


def _looks(thing: Thing) -> dict[str, str]:
    return {name: getattr(thing, name) for name in ("place", "size", "texture", "colour", "shape")}


def _texts(texts: tuple[Text, ...]) -> list[str]:
    if not texts:
        return [w.NO_TEXT]
    return [_text(text, w.TURNS[min(i, 1)]) for i, text in enumerate(texts)]


def _text(text: Text, turn: str) -> str:
    kind, value = text_kind(text), shown_value(text)
    if text.kind == "secret":
        return w.tell(w.SECRET_TEXT, turn=turn, kind=kind, word=value, carrier=text.carrier)
    template = w.WORD_TEXT if text.kind == "word" else w.NUMBER_TEXT
    return w.tell(template, turn=turn, kind=kind, ink=text.colour, **{text.kind: value})


def _still_text(text: Text) -> str:
    template = w.STILL_WORD if text.kind == "word" else w.STILL_NUMBER
    return w.tell(template, kind=text.kind, ink=text.colour, **{text.kind: shown_value(text)})
