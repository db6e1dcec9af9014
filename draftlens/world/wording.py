"""The sentences of the world, each written once: as templates that are filled to tell and turned
round to read.

In a told text, square brackets mark what had to be seen ("a [red] circle"); :func:`unmark` takes
them away again. Which wording is used is decided by visible things (the size of a thing, say):
captions vary, and yet nothing in them is left to chance.
"""

import re

from draftlens.world.scene import (
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
SHOT = "The {ordinal} shot shows {count} shapes on a {pattern} {background} background, and the camera {camera}."
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

DOES = {
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
CAMERA = {
    "still": "stands [still]",
    "left": "[pans] to the [left]",
    "right": "[pans] to the [right]",
}

TURNS = ("First", "Then")
KINDS = ("word", "number", "secret word")
CARRIERS = ("strip", "card")


def unmark(told: str) -> str:
    """A told text as it is said: without the marks around what had to be seen."""
    return told.replace("[", "").replace("]", "")


def tell(template: str, **values: str) -> str:
    """The template with its fields filled; values are marked as seen unless they bring marks or
    need none."""
    plain = {"ordinal", "turn", "does", "camera"}
    return template.format(
        **{name: value if name in plain else f"[{value}]" for name, value in values.items()}
    )


_DONE = tuple(
    unmark(does).format(side=side) for does in DOES.values() for side in ("left", "right")
)
_VALUES: dict[str, tuple[str, ...]] = {
    "ordinal": ORDINALS,
    "count": AMOUNTS,
    "left": AMOUNTS,
    "pattern": PATTERNS,
    "background": BACKGROUNDS,
    "camera": tuple(unmark(camera) for camera in CAMERA.values()),
    "texture": TEXTURES,
    "colour": COLOURS,
    "shape": SHAPES,
    "size": SIZES,
    "place": PLACES,
    "does": tuple(dict.fromkeys(_DONE)),
    "turn": TURNS,
    "kind": KINDS,
    "word": tuple(word.upper() for word in WORDS),
    "number": NUMBERS,
    "ink": TEXT_COLOURS,
    "carrier": CARRIERS,
    "when": TIMES,
}


def reader(template: str) -> re.Pattern[str]:
    """The template turned round: a pattern that finds the fields' values in a said sentence."""
    pattern = re.escape(unmark(template))
    for name, values in _VALUES.items():
        pattern = pattern.replace(
            rf"\{{{name}\}}", f"(?P<{name}>{'|'.join(re.escape(value) for value in values)})"
        )
    return re.compile(pattern)
