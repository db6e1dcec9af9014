"""The sentences of the world, as templates that captions fill and fact readers match.

In a marked text, square brackets enclose the words that must be seen to be known ("a [red]
circle"). :func:`unmark` removes the brackets. The choice between several wordings depends on
visible properties, such as the size of a thing. Captions thus vary without any randomness.
"""

import re

from draftlens_lab.world.scene import (
    BACKGROUNDS,
    COLOURS,
    NUMBERS,
    PATTERNS,
    PLACES,
    SHAPES,
    SIZES,
    TEXT_COLOURS,
    TEXTURES,
    TIMES,
    WORDS,
)

AMOUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")
ORDINALS = ("first", "second")

ONE_SHOT = "The video has [one] shot and no cut."
TWO_SHOTS = "The video has [two] shots and one cut."
SHOT = (
    "The {ordinal} shot shows {count} shapes on a {pattern} {background} background, "
    "and the camera {camera}."
)
STILL = "The picture shows {count} shapes on a {pattern} {background} background."
CHANGES = "[A] {texture} {colour} {shape} at the {place} {does}."
LARGE = "[At] the {place}, a {size} {texture} {colour} {shape} {does}."
SMALL = "[There] is a {size} {texture} {colour} {shape} at the {place}, and it {does}."
STILL_LARGE = "[At] the {place}, there is a {size} {texture} {colour} {shape}."
STILL_SMALL = "[A] {size} {texture} {colour} {shape} can be seen at the {place}."
ALL_LEFT = "[All] stay in view."
SOME_LEFT = "[At] its end, {left} are left."
NO_TEXT = "There is [no] text."
WORD_TEXT = "{turn} comes the {kind} {word} in {ink} letters."
NUMBER_TEXT = "{turn} comes the {kind} {number} in {ink} letters."
SECRET_TEXT = "{turn} comes the {kind} {word} on a {carrier}."
STILL_WORD = "The {kind} {word} is written below them in {ink} letters."
STILL_NUMBER = "The {kind} {number} is written below them in {ink} letters."

# Answers about a part of a reel, and about two pictures.
PART = "It shows {count} shapes on a {pattern} {background} background, and the camera {camera}."
PART_WORD = "The {kind} {word} is shown in {ink} letters."
PART_NUMBER = "The {kind} {number} is shown in {ink} letters."
HERO = "{turn} it {does} at the {place}, and there is a {pattern} {background} background."
COMPARED = "The {which} shot shows {count} shapes on a {pattern} {background} background."
BEFORE_AND_AFTER = "At the {place}, there is {before} first and then {after}."
NOTHING = "nothing"

# The verb phrase for each motion and time.
ACTIONS = {
    "stay": "[stays] where it is",
    "left": "[moves] to the [left]",
    "right": "[moves] to the [right]",
    "up": "[moves] [upwards]",
    "down": "[moves] [downwards]",
    "grow": "[grows] bigger and bigger",
    "shrink": "[shrinks] more and more",
    "enter early": "[enters] [early] from the {side} side",
    "enter late": "[enters] [late] from the {side} side",
    "leave early": "[leaves] [early] through the {side} side",
    "leave late": "[leaves] [late] through the {side} side",
    "bump": "[bumps] into its neighbour and bounces back",
}
CAMERA_ACTIONS = {
    "still": "stands [still]",
    "left": "[pans] to the [left]",
    "right": "[pans] to the [right]",
}

TURNS = ("First", "Then")
TEXT_KINDS = ("word", "number", "secret word")
CARRIERS = ("strip", "card")
NAMED_SHOTS = ("first", "second", "last")
LOOKS = tuple(
    f"a {texture} {colour} {shape}"
    for texture in TEXTURES
    for colour in COLOURS
    for shape in SHAPES
)

# Fields with values that are not visible or carry their own marks.
_UNMARKED_FIELDS = frozenset({"ordinal", "which", "turn", "does", "camera", "before", "after"})


def unmark(marked: str) -> str:
    """The text without the brackets around what must be seen."""
    return marked.replace("[", "").replace("]", "")


def fill(template: str, **values: str) -> str:
    """Fill the fields of a template, with brackets around the values that must be seen."""
    fields = {}
    for name, value in values.items():
        fields[name] = value if name in _UNMARKED_FIELDS else f"[{value}]"
    return template.format(**fields)


def _plain_actions() -> tuple[str, ...]:
    """The verb phrases for things, without brackets, each once."""
    phrases = []
    for action in ACTIONS.values():
        for side in ("left", "right"):
            phrase = unmark(action).format(side=side)
            if phrase not in phrases:
                phrases.append(phrase)
    return tuple(phrases)


# The values that each field can have in an unmarked text.
_FIELD_VALUES: dict[str, tuple[str, ...]] = {
    "ordinal": ORDINALS,
    "count": AMOUNTS,
    "left": AMOUNTS,
    "pattern": PATTERNS,
    "background": BACKGROUNDS,
    "camera": tuple(unmark(action) for action in CAMERA_ACTIONS.values()),
    "texture": TEXTURES,
    "colour": COLOURS,
    "shape": SHAPES,
    "size": SIZES,
    "place": PLACES,
    "does": _plain_actions(),
    "turn": TURNS,
    "kind": TEXT_KINDS,
    "word": tuple(word.upper() for word in WORDS),
    "number": NUMBERS,
    "ink": TEXT_COLOURS,
    "carrier": CARRIERS,
    "when": TIMES,
    "which": NAMED_SHOTS,
    "before": (NOTHING, *LOOKS),
    "after": (NOTHING, *LOOKS),
}


def sentence_pattern(template: str) -> re.Pattern[str]:
    """A pattern for the unmarked sentences of a template, with a named group for each field."""
    pattern = re.escape(unmark(template))
    for name, values in _FIELD_VALUES.items():
        alternatives = "|".join(re.escape(value) for value in values)
        pattern = pattern.replace(rf"\{{{name}\}}", f"(?P<{name}>{alternatives})")
    return re.compile(pattern)
