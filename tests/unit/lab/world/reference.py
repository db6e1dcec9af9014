"""A second, slow implementation of the world, to compare the library's own functions with."""

from __future__ import annotations

import colorsys
import math

import numpy as np
from draftlens_lab.world.scene import Scene, Shot, Text, Thing

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


def make_thing(motion: str = "stay", **changes: object) -> Thing:
    """A large plain red circle at the top left, with these changes."""
    fields: dict[str, object] = {
        "place": "top left",
        "colour": "red",
        "shape": "circle",
        "texture": "plain",
        "size": "large",
        "motion": motion,
        "when": "",
        "centre": (0.25, 0.25),
    }
    return Thing(**{**fields, **changes})  # type: ignore[arg-type]


def make_shot(*things: Thing, **changes: object) -> Shot:
    """A still shot of these things on plain black, over the whole clip, with these changes."""
    fields: dict[str, object] = {
        "background": "black",
        "pattern": "plain",
        "camera": "still",
        "things": things,
        "start": 0.0,
        "end": 1.0,
    }
    return Shot(**{**fields, **changes})  # type: ignore[arg-type]


def make_scene(*shots: Shot, texts: tuple[Text, ...] = ()) -> Scene:
    return Scene(0, shots, texts)


def is_novel(scene: Scene) -> bool:
    """Whether a scene shows a combination of the held-out split."""
    for shot in (*scene.shots, *scene.inserts):
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


def expected_action(thing: Thing) -> str:
    """The motion of a thing, in the words of captions."""
    side = "right" if thing.place.endswith("right") else "left"
    if thing.motion == "enter":
        return f"enters {thing.when} from the {side} side"
    if thing.motion == "leave":
        return f"leaves {thing.when} through the {side} side"
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


def expected_facts(scene: Scene) -> dict[str, str]:
    """The facts of a clip."""
    facts = {"shots": NUMERALS[len(scene.shots)]}
    for ordinal, shot in zip(COUNTING, scene.shots, strict=False):
        facts |= _shot_facts(f"{ordinal} shot", shot)
    if not scene.texts:
        facts["text"] = "none"
    for ordinal, text in zip(COUNTING, scene.texts, strict=False):
        facts |= _text_facts(f"{ordinal} text", text)
    return facts


def expected_still_facts(scene: Scene) -> dict[str, str]:
    """The facts of a picture."""
    shot = scene.shots[0]
    facts = {
        "picture count": NUMERALS[len(shot.things)],
        "picture background": shot.background,
        "picture pattern": shot.pattern,
    }
    for thing in shot.things:
        facts |= _thing_facts(f"picture {thing.place}", thing)
    for text in scene.texts:
        facts |= _text_facts("first text", text)
    return facts


def _shot_facts(prefix: str, shot: Shot) -> dict[str, str]:
    camera = "stands still" if shot.camera == "still" else f"pans to the {shot.camera}"
    remaining = [thing for thing in shot.things if thing.motion != "leave"]
    facts = {
        f"{prefix} count": NUMERALS[len(shot.things)],
        f"{prefix} background": shot.background,
        f"{prefix} pattern": shot.pattern,
        f"{prefix} camera": camera,
        f"{prefix} left": NUMERALS[len(remaining)],
    }
    for thing in shot.things:
        facts |= _thing_facts(f"{prefix} {thing.place}", thing)
        facts[f"{prefix} {thing.place} does"] = expected_action(thing)
    return facts


def _thing_facts(prefix: str, thing: Thing) -> dict[str, str]:
    facts = {
        f"{prefix} texture": thing.texture,
        f"{prefix} colour": thing.colour,
        f"{prefix} shape": thing.shape,
    }
    if thing.motion not in ("grow", "shrink"):
        facts[f"{prefix} size"] = thing.size
    return facts


def _text_facts(prefix: str, text: Text) -> dict[str, str]:
    if text.kind == "secret":
        return {
            f"{prefix} kind": "secret word",
            f"{prefix} word": text.value.upper(),
            f"{prefix} carrier": text.carrier,
        }
    value = text.value.upper() if text.kind == "word" else text.value
    return {
        f"{prefix} kind": text.kind,
        f"{prefix} {text.kind}": value,
        f"{prefix} ink": text.colour,
    }


def shot_at(scene: Scene, time: float) -> tuple[int, float]:
    """The index of the shot at a clip time, and the shot time."""
    index = len([shot for shot in scene.shots if shot.start <= time]) - 1
    shot = scene.shots[index]
    return index, (time - shot.start) / (shot.end - shot.start)


def text_at(scene: Scene, time: float) -> Text | None:
    """The text on the screen at a clip time, or None."""
    texts = [text for text in scene.texts if text.start <= time < text.end]
    assert len(texts) < 2
    return texts[0] if texts else None


def expected_pose(thing: Thing, shot: Shot, time: float) -> tuple[float, float, float]:
    """Centre and radius of a thing at a shot time, motion by motion."""
    (x, y), radius = thing.centre, {"small": 0.1, "large": 0.15}[thing.size]
    shift = np.interp(time, (0, 1), (-1, 1))
    x += {"left": -0.1, "right": 0.1}.get(thing.motion, 0) * shift
    y += {"up": -0.075, "down": 0.075}.get(thing.motion, 0) * shift
    if thing.motion in ("grow", "shrink"):
        radius = np.interp(time, (0, 1), (0.065, 0.16) if thing.motion == "grow" else (0.16, 0.065))
    if thing.motion in ("enter", "leave"):
        outside = -1.2 * radius if "left" in thing.place else 1 + 1.2 * radius
        ends = (outside, x) if thing.motion == "enter" else (x, outside)
        x = np.interp(time, (0.05, 0.4) if thing.when == "early" else (0.55, 0.9), ends)
    if thing.motion == "bump":
        row = thing.place.split()[0]
        (neighbour,) = (t for t in shot.things if t.place.split()[0] == row and t is not thing)
        distance = neighbour.centre[0] - x
        reach = radius + {"small": 0.1, "large": 0.15}[neighbour.size]
        x += np.interp(time, (0, 0.5, 1), (0, (distance - math.copysign(reach, distance)) / 2, 0))
    x += np.interp(
        time, (0, 1), {"left": (-0.13, 0.13), "right": (0.13, -0.13)}.get(shot.camera, (0, 0))
    )
    return float(x), float(y), float(radius)


def nearest_colour(pixel: np.ndarray) -> str:
    """The colour of things that is nearest in hue, or "none" for greys."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(float(v) / 255 for v in pixel))
    if saturation < 0.3 or value < 0.25:
        return "none"
    return min(
        HUES, key=lambda name: min(abs(360 * hue - HUES[name]), 360 - abs(360 * hue - HUES[name]))
    )


def background_of(pixel: np.ndarray) -> str:
    """The name of the background to which a pixel belongs, plain or in the shade of a pattern."""
    r, _, b = (float(v) for v in pixel)
    if b - r > 40:
        return "navy"
    mean = float(np.mean(pixel))
    if mean < 60:
        return "black"
    return "grey" if mean < 175 else "white"
