"""Scenes from seeds, the same ones on every machine, and which of them no model is trained on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from draftlens.world.scene import (
    BACKGROUNDS,
    COLOURS,
    FONTS,
    MOTIONS,
    NUMBERS,
    PATTERNS,
    PLACES,
    SHAPES,
    SIZES,
    TEXT_COLOURS,
    TEXTURES,
    TIMES,
    WORDS,
    Scene,
    Shot,
    Text,
    Thing,
)

# Seeds from here on are the held-out split. Each of its scenes shows a combination that no training
# scene shows.
HELD_OUT = 1_000_000_000
HELD_OUT_LOOKS = {
    ("red", "ring"),
    ("blue", "cross"),
    ("green", "circle"),
    ("orange", "square"),
    ("purple", "triangle"),
}
HELD_OUT_MOVES = {
    ("red", "up"),
    ("green", "grow"),
    ("blue", "left"),
    ("yellow", "enter"),
    ("orange", "leave"),
}

JITTER = 0.015
COLUMN = {"left": 0.25, "right": 0.75}
ROW = {"top": 0.25, "bottom": 0.62}  # above the strip at the bottom that carries text
SLOTS = 4  # of clip time, each for one text at most


def held_out_word(colour: str, word: str) -> bool:
    """Whether training scenes never show this word in this colour: one of eight of all such
    combinations."""
    return (WORDS.index(word) + 5 * TEXT_COLOURS.index(colour)) % 8 == 0


def novelties(scene: Scene) -> int:
    """How many held-out combinations a scene shows."""
    things = [thing for shot in scene.shots for thing in shot.things]
    looks = sum((thing.colour, thing.shape) in HELD_OUT_LOOKS for thing in things)
    moves = sum((thing.colour, thing.motion) in HELD_OUT_MOVES for thing in things)
    return (
        looks
        + moves
        + sum(t.kind == "word" and held_out_word(t.colour, t.value) for t in scene.texts)
    )


def sample_scene(seed: int) -> Scene:
    """The clip of this seed: one shot of four things and four texts, or two of three or four and
    two to four texts."""
    return _of_split(seed, np.random.default_rng([seed, 5]), _clip)


def sample_sparse(seed: int) -> Scene:
    """A clip to learn seeing from, with less in it: two to four things a shot, and perhaps no
    text."""
    return _of_split(seed, np.random.default_rng([seed, 0]), _sparse_clip)


def sample_still(seed: int) -> Scene:
    """The picture of this seed: two to four things and, in every other one, a text."""
    return _of_split(seed, np.random.default_rng([seed, 1]), _picture)


def sample_pair(seed: int) -> tuple[Scene, Scene]:
    """Two pictures that differ in one thing's colour, shape or texture, or in its presence."""
    rng = np.random.default_rng([seed, 4])
    while True:
        first = _of_split(seed, rng, _picture)
        second = _changed(rng, first)
        if (novelties(first) > 0) == (novelties(second) > 0) == (seed >= HELD_OUT):
            return first, second


def _of_split(
    seed: int, rng: np.random.Generator, draw: Callable[[np.random.Generator, int], Scene]
) -> Scene:
    while True:
        scene = draw(rng, seed)
        if (novelties(scene) > 0) == (seed >= HELD_OUT):
            return scene


def _pick(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _clip(rng: np.random.Generator, seed: int) -> Scene:
    if rng.random() < 0.3:
        shots: tuple[Shot, ...] = (_shot(rng, 4, 0.0, 1.0, BACKGROUNDS),)
        return Scene(seed, shots, _texts(rng, SLOTS, may_insert=True))
    cut = float(rng.uniform(0.44, 0.56))
    first = _shot(rng, int(rng.integers(3, 5)), 0.0, cut, BACKGROUNDS)
    others = tuple(b for b in BACKGROUNDS if b != first.background)
    shots = (first, _shot(rng, int(rng.integers(3, 5)), cut, 1.0, others))
    return Scene(seed, shots, _texts(rng, int(rng.integers(2, 5)), may_insert=False))


def _sparse_clip(rng: np.random.Generator, seed: int) -> Scene:
    if rng.random() < 0.45:
        shots: tuple[Shot, ...] = (_shot(rng, int(rng.integers(3, 5)), 0.0, 1.0, BACKGROUNDS),)
    else:
        cut = float(rng.uniform(0.44, 0.56))
        first = _shot(rng, int(rng.integers(2, 4)), 0.0, cut, BACKGROUNDS)
        others = tuple(b for b in BACKGROUNDS if b != first.background)
        shots = (first, _shot(rng, int(rng.integers(2, 4)), cut, 1.0, others))
    count = int(rng.choice(SLOTS + 1, p=(0.1, 0.25, 0.25, 0.25, 0.15)))
    return Scene(seed, shots, _texts(rng, count, may_insert=len(shots) == 1))


def _picture(rng: np.random.Generator, seed: int) -> Scene:
    shot = _shot(rng, int(rng.integers(2, 5)), 0.0, 1.0, BACKGROUNDS, moving=False)
    texts = (_text(rng, set(), 0.0, 1.0),) if rng.random() < 0.5 else ()
    return Scene(seed, (shot,), texts)


def _shot(
    rng: np.random.Generator,
    count: int,
    start: float,
    end: float,
    backgrounds: tuple[str, ...],
    moving: bool = True,
) -> Shot:
    places = [PLACES[p] for p in sorted(int(p) for p in rng.permutation(len(PLACES))[:count])]
    colours = [COLOURS[int(c)] for c in rng.permutation(len(COLOURS))[:count]]
    camera = ("left", "right")[int(rng.integers(2))] if moving and rng.random() < 0.2 else "still"
    moves = _moves(rng, places) if moving and camera == "still" else ["stay"] * count
    things = tuple(_thing(rng, *of) for of in zip(places, colours, moves, strict=True))
    return Shot(_pick(rng, backgrounds), _pick(rng, PATTERNS), camera, things, start, end)


def _moves(rng: np.random.Generator, places: list[str]) -> list[str]:
    """A motion for each place; two things side by side may bump; all never drift one way, which is
    the camera's."""
    rows = [row for row in ("top", "bottom") if sum(place.startswith(row) for place in places) == 2]
    while True:
        moves = [_pick(rng, MOTIONS[:-1]) for _ in places]
        if rows and rng.random() < 0.25:
            row = rows[int(rng.integers(len(rows)))]
            moves = [
                "bump" if place.startswith(row) else move
                for place, move in zip(places, moves, strict=True)
            ]
        if set(moves) not in ({"left"}, {"right"}):
            return moves


def _thing(rng: np.random.Generator, place: str, colour: str, motion: str) -> Thing:
    row, column = place.split()
    dx, dy = (float(v) for v in rng.uniform(-JITTER, JITTER, size=2))
    return Thing(
        place=place,
        colour=colour,
        shape=_pick(rng, SHAPES),
        texture=_pick(rng, TEXTURES),
        size=_pick(rng, SIZES),
        motion=motion,
        when=_pick(rng, TIMES) if motion in ("enter", "leave") else "",
        centre=(COLUMN[column] + dx, ROW[row] + dy),
    )


def _texts(rng: np.random.Generator, count: int, may_insert: bool) -> tuple[Text, ...]:
    """So many texts in different slots of the clip; at most one of them is the secret."""
    used: set[str] = set()
    texts = []
    for slot in sorted(int(s) for s in rng.permutation(SLOTS)[:count]):
        length = float(
            rng.uniform(0.15, 0.22)
        )  # longer than the step between eight frames: one of them shows it
        start = slot / SLOTS + float(rng.uniform(0.01, 0.24 - length))
        texts.append(_text(rng, used, start, start + length))
    if texts and rng.random() < 0.5:
        at = int(rng.integers(len(texts)))
        carrier = "card" if may_insert and rng.random() < 0.5 else "strip"
        word = _fresh(rng, WORDS, used)
        texts[at] = replace(texts[at], kind="secret", value=word, colour="black", carrier=carrier)
    return tuple(texts)


def _text(rng: np.random.Generator, used: set[str], start: float, end: float) -> Text:
    kind = "word" if rng.random() < 0.65 else "number"
    value = _fresh(rng, WORDS if kind == "word" else NUMBERS, used)
    return Text(kind, value, _pick(rng, TEXT_COLOURS), "strip", _pick(rng, FONTS), start, end)


def _fresh(rng: np.random.Generator, values: tuple[str, ...], used: set[str]) -> str:
    value = _pick(rng, values)
    while value in used:
        value = _pick(rng, values)
    used.add(value)
    return value


def _changed(rng: np.random.Generator, scene: Scene) -> Scene:
    """The same picture with one thing changed or, where two would be left, taken away."""
    shot = scene.shots[0]
    at = int(rng.integers(len(shot.things)))
    kind = _pick(rng, ("colour", "shape", "texture", "gone")[: 4 if len(shot.things) > 2 else 3])
    thing = shot.things[at]
    if kind == "gone":
        things = shot.things[:at] + shot.things[at + 1 :]
    else:
        taken = {t.colour for t in shot.things}
        values = {
            "colour": tuple(c for c in COLOURS if c not in taken),
            "shape": SHAPES,
            "texture": TEXTURES,
        }[kind]
        old = getattr(thing, kind)
        fresh: dict[str, Any] = {kind: _pick(rng, tuple(v for v in values if v != old))}
        new = replace(thing, **fresh)
        things = (*shot.things[:at], new, *shot.things[at + 1 :])
    return replace(scene, shots=(replace(shot, things=things),))
