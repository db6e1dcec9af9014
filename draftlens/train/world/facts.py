"""Facts, from a scene and from a text about one: comparing the two says how much of an answer is right.

A fact is a name and a value, both words: ``background``, ``count``, ``end`` (things in view at the end), and for each
quarter of the picture that holds something ``<place> colour``, ``<place> shape``, ``<place> size`` (not where the size
changes) and ``<place> motion``.
"""

import re

from draftlens.train.world.caption import NUMBERS, does, staying
from draftlens.train.world.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, Scene

Facts = dict[str, str]

_LOOK = rf"(?P<colour>{'|'.join(COLOURS)}) (?P<shape>{'|'.join(SHAPES)})"
_PLACE = rf"(?P<place>{'|'.join(PLACES)})"
_SENTENCES = (
    re.compile(rf"^An? {_LOOK} at the {_PLACE} of the picture (?P<motion>.+)$"),
    re.compile(rf"^At the {_PLACE} of the picture, there is a (?P<size>large) {_LOOK}$"),
    re.compile(rf"^At the {_PLACE} of the picture, a (?P<size>large) {_LOOK} (?P<motion>.+)$"),
    re.compile(rf"^There is a (?P<size>small) {_LOOK} at the {_PLACE}(, and it (?P<motion>.+))?$"),
)
_OPENING = re.compile(rf"(?P<bg>{'|'.join(BACKGROUNDS)}) background")
_COUNT = re.compile(rf"(?P<count>{'|'.join(NUMBERS[2:])}) shapes", re.IGNORECASE)
_END = re.compile(rf"^At the end (?P<end>{'|'.join(NUMBERS)})\b")


def facts(scene: Scene) -> Facts:
    """Everything that a right answer to "Describe the video." says of a scene."""
    found = _looks(scene)
    for thing in scene.things:
        found[f"{thing.place} motion"] = does(thing)
    found["end"] = NUMBERS[staying(scene)]
    return found


def still_facts(scene: Scene) -> Facts:
    """Everything that a right answer to "Describe the image." says of a scene."""
    return _looks(scene)


def _looks(scene: Scene) -> Facts:
    found = {"background": scene.background, "count": NUMBERS[len(scene.things)]}
    for thing in scene.things:
        found[f"{thing.place} colour"] = thing.colour
        found[f"{thing.place} shape"] = thing.shape
        if not thing.changes_size:
            found[f"{thing.place} size"] = thing.size
    return found


def read_facts(text: str) -> Facts:
    """The facts that a text states; sentences that are not of the world's form state none."""
    found: Facts = {}
    for sentence in (part.strip() for part in text.split(".")):
        if match := _OPENING.search(sentence):
            found["background"] = match["bg"]
            if count := _COUNT.search(sentence):
                found["count"] = count["count"].lower()
        elif sentence.startswith("All of them"):
            found["end"] = found.get("count", "")
        elif match := _END.match(sentence):
            found["end"] = match["end"]
        else:
            found.update(_read_thing(sentence))
    return found


def _read_thing(sentence: str) -> Facts:
    for pattern in _SENTENCES:
        if match := pattern.match(sentence):
            said = match.groupdict()
            place = said.pop("place")
            return {f"{place} {name}": value for name, value in said.items() if value}
    return {}


def right_facts(text: str, truth: Facts) -> tuple[int, int]:
    """How many facts of the truth the text states rightly, and how many facts there are to get right or wrong.

    A fact that the text invents (a thing in an empty quarter, say) counts as one more that is wrong.
    """
    said = read_facts(text)
    return sum(said.get(name) == value for name, value in truth.items()), len(truth.keys() | said.keys())
