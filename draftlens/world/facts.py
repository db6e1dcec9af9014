"""Facts, from a text about a scene: comparing those of an answer with those of the truth says how
much is right.

A fact is a name and a value, both words. Names begin with where the fact holds: "first shot
background", "first shot top left colour", "second text ink"; pictures have "picture background" and
so on.
"""

import re

from draftlens.world import wording as w
from draftlens.world.caption import caption, still_caption
from draftlens.world.scene import Scene

Facts = dict[str, str]

_THINGS = tuple(w.reader(t) for t in (w.CHANGES, w.LARGE, w.SMALL, w.STILL_LARGE, w.STILL_SMALL))
_TEXTS = tuple(w.reader(t) for t in (w.WORD_TEXT, w.NUMBER_TEXT, w.SECRET_TEXT))
_STILL_TEXTS = tuple(w.reader(t) for t in (w.STILL_WORD, w.STILL_NUMBER))
_SHOT, _STILL, _LEFT = (w.reader(t) for t in (w.SHOT, w.STILL, w.SOME_LEFT))
_COUNTING = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def facts(scene: Scene) -> Facts:
    """Everything that a right answer to "Describe the video." says of a scene."""
    return read_facts(caption(scene))


def still_facts(scene: Scene) -> Facts:
    """Everything that a right answer to "Describe the image." says of a scene."""
    return read_facts(still_caption(scene))


def read_facts(text: str) -> Facts:
    """The facts that a text states; sentences that are not of the world's form state none."""
    found: Facts = {}
    where, texts = "", 0
    for sentence in re.findall(r"[^.]+\.", text):
        sentence = sentence.strip()
        if sentence in (w.unmark(w.ONE_SHOT), w.unmark(w.TWO_SHOTS)):
            found["shots"] = "two" if "two" in sentence else "one"
        elif sentence == w.unmark(w.NO_TEXT):
            found["text"] = "none"
        elif sentence == w.unmark(w.ALL_LEFT):
            found[f"{where} left"] = found.get(f"{where} count", "")
        elif said := _match((_SHOT, _STILL), sentence):
            where = f"{said.pop('ordinal')} shot" if "ordinal" in said else "picture"
            found.update({f"{where} {name}": value for name, value in said.items()})
        elif said := _match((_LEFT,), sentence):
            found[f"{where} left"] = said["left"]
        elif said := _match(_THINGS, sentence):
            place = said.pop("place")
            found.update({f"{where} {place} {name}": value for name, value in said.items()})
        elif said := _match((*_TEXTS, *_STILL_TEXTS), sentence):
            said.pop("turn", None)
            texts = min(texts + 1, len(_COUNTING) - 1)
            found.update({f"{_COUNTING[texts]} text {name}": value for name, value in said.items()})
    return found


def _match(patterns: tuple[re.Pattern[str], ...], sentence: str) -> Facts | None:
    for pattern in patterns:
        if match := pattern.fullmatch(sentence):
            return {name: value for name, value in match.groupdict().items() if value}
    return None


def right_facts(text: str, truth: Facts) -> tuple[int, int]:
    """How many facts of the truth the text states rightly, and how many facts there are to get
    right or wrong.

    A fact that the text invents (a thing in an empty quarter, say) counts as one more that is
    wrong.
    """
    said = read_facts(text)
    return sum(said.get(name) == value for name, value in truth.items()), len(
        truth.keys() | said.keys()
    )
