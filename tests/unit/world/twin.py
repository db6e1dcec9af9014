"""The world told a second time, slowly: what tests compare the world's own functions with."""

from __future__ import annotations

import colorsys
import math

import numpy as np

from draftlens.world.scene import Scene, Shot, Text, Thing

NUMERALS = ("none", "one", "two", "three", "four", "five", "six")
COUNTING = ("first", "second", "third", "fourth")
NOVEL_LOOKS = ("red ring", "blue cross", "green circle", "orange square", "purple triangle")
NOVEL_MOVES = ("red up", "green grow", "blue left", "yellow enter", "orange leave")
NOVEL_WORDS = {
    "white": "plum bird wolf",
    "yellow": "ship tree coin",
    "green": "leaf star hill",
    "pink": "king snow salt",
}
HUES = {"red": 0, "orange": 31, "yellow": 48, "green": 131, "blue": 218, "purple": 282}  # degrees


def one(motion: str = "stay", **changes: object) -> Thing:
    """A large plain red circle at the top left, changed as asked."""
    fields = {
        "place": "top left",
        "colour": "red",
        "shape": "circle",
        "texture": "plain",
        "size": "large",
    }
    return Thing(**{**fields, "motion": motion, "when": "", "centre": (0.25, 0.25), **changes})  # type: ignore[arg-type]


def shot_of(*things: Thing, **changes: object) -> Shot:
    """A still shot of these things on plain black, over the whole clip, changed as asked."""
    fields: dict[str, object] = {"background": "black", "pattern": "plain", "camera": "still"}
    return Shot(**{**fields, "things": things, "start": 0.0, "end": 1.0, **changes})  # type: ignore[arg-type]


def scene_of(*shots: Shot, texts: tuple[Text, ...] = ()) -> Scene:
    return Scene(0, shots, texts)


def is_novel(scene: Scene) -> bool:
    """Whether a scene shows anything that only the held-out split may show."""
    for shot in scene.shots:
        for thing in shot.things:
            if (
                f"{thing.colour} {thing.shape}" in NOVEL_LOOKS
                or f"{thing.colour} {thing.motion}" in NOVEL_MOVES
            ):
                return True
    return any(
        text.kind == "word" and text.value in NOVEL_WORDS[text.colour].split()
        for text in scene.texts
    )


def deed(thing: Thing) -> str:
    """What a thing does, in the words of captions."""
    if thing.motion in ("enter", "leave"):
        side = "right" if thing.place.endswith("right") else "left"
        return f"{thing.motion}s {thing.when} {'from' if thing.motion == 'enter' else 'through'} the {side} side"
    return {
        "stay": "stays where it is",
        "left": "moves to the left",
        "right": "moves to the right",
        "up": "moves upwards",
        "down": "moves downwards",
        "grow": "grows bigger and bigger",
        "shrink": "shrinks more and more",
        "bump": "bumps into its neighbour and bounces back",
    }[thing.motion]


def known(scene: Scene) -> dict[str, str]:
    """The facts of a clip."""
    found = {"shots": NUMERALS[len(scene.shots)]}
    for ordinal, shot in zip(COUNTING, scene.shots, strict=False):
        here = f"{ordinal} shot"
        found |= {
            f"{here} count": NUMERALS[len(shot.things)],
            f"{here} background": shot.background,
        }
        found[f"{here} pattern"] = shot.pattern
        found[f"{here} camera"] = (
            "stands still" if shot.camera == "still" else f"pans to the {shot.camera}"
        )
        found[f"{here} left"] = NUMERALS[len([t for t in shot.things if t.motion != "leave"])]
        for thing in shot.things:
            found |= _known_thing(f"{here} {thing.place}", thing) | {
                f"{here} {thing.place} does": deed(thing)
            }
    found |= {"text": "none"} if not scene.texts else {}
    for ordinal, text in zip(COUNTING, scene.texts, strict=False):
        found |= _known_text(f"{ordinal} text", text)
    return found


def known_still(scene: Scene) -> dict[str, str]:
    """The facts of a picture."""
    shot = scene.shots[0]
    found = {"picture count": NUMERALS[len(shot.things)], "picture background": shot.background}
    found["picture pattern"] = shot.pattern
    for thing in shot.things:
        found |= _known_thing(f"picture {thing.place}", thing)
    for text in scene.texts:
        found |= _known_text("first text", text)
    return found


def _known_thing(where: str, thing: Thing) -> dict[str, str]:
    size = {} if thing.motion in ("grow", "shrink") else {f"{where} size": thing.size}
    return {
        f"{where} {name}": getattr(thing, name) for name in ("texture", "colour", "shape")
    } | size


def _known_text(where: str, text: Text) -> dict[str, str]:
    if text.kind == "secret":
        return {
            f"{where} kind": "secret word",
            f"{where} word": text.value.upper(),
            f"{where} carrier": text.carrier,
        }
    value = text.value.upper() if text.kind == "word" else text.value
    return {f"{where} kind": text.kind, f"{where} {text.kind}": value, f"{where} ink": text.colour}


def shot_at(scene: Scene, time: float) -> tuple[int, float]:
    """Which shot runs at a clip time, and the time within it."""
    at = len([shot for shot in scene.shots if shot.start <= time]) - 1
    shot = scene.shots[at]
    return at, (time - shot.start) / (shot.end - shot.start)


def text_at(scene: Scene, time: float) -> Text | None:
    shown = [text for text in scene.texts if text.start <= time < text.end]
    assert len(shown) < 2
    return shown[0] if shown else None


def whereabouts(thing: Thing, shot: Shot, time: float) -> tuple[float, float, float]:
    """Centre and radius of a thing at a shot time, motion by motion."""
    (x, y), radius = thing.centre, {"small": 0.1, "large": 0.15}[thing.size]
    way = np.interp(time, (0, 1), (-1, 1))
    x += {"left": -0.1, "right": 0.1}.get(thing.motion, 0) * way
    y += {"up": -0.075, "down": 0.075}.get(thing.motion, 0) * way
    if thing.motion in ("grow", "shrink"):
        radius = np.interp(time, (0, 1), (0.065, 0.16) if thing.motion == "grow" else (0.16, 0.065))
    if thing.motion in ("enter", "leave"):
        out = -1.2 * radius if "left" in thing.place else 1 + 1.2 * radius
        ends = (out, x) if thing.motion == "enter" else (x, out)
        x = np.interp(time, (0.05, 0.4) if thing.when == "early" else (0.55, 0.9), ends)
    if thing.motion == "bump":
        (other,) = (
            t
            for t in shot.things
            if t.place.split()[0] == thing.place.split()[0] and t is not thing
        )
        apart = other.centre[0] - x
        reach = radius + {"small": 0.1, "large": 0.15}[other.size]
        x += np.interp(time, (0, 0.5, 1), (0, (apart - math.copysign(reach, apart)) / 2, 0))
    x += np.interp(
        time, (0, 1), {"left": (-0.13, 0.13), "right": (0.13, -0.13)}.get(shot.camera, (0, 0))
    )
    return float(x), float(y), float(radius)


def family(pixel: np.ndarray) -> str:
    """The name of the thing's colour that is nearest in hue, or "none" for greys."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(float(v) / 255 for v in pixel))
    if saturation < 0.3 or value < 0.25:
        return "none"
    return min(
        HUES, key=lambda name: min(abs(360 * hue - HUES[name]), 360 - abs(360 * hue - HUES[name]))
    )


def ground(pixel: np.ndarray) -> str:
    """The background that a pixel of it shows, plain or in the shade of a pattern."""
    r, _, b = (float(v) for v in pixel)
    if b - r > 40:
        return "navy"
    mean = float(np.mean(pixel))
    return "black" if mean < 60 else "grey" if mean < 175 else "white"
