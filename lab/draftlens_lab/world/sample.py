"""Samples scenes from seeds, equal on all machines, and defines the held-out split."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens_lab.world.scene import (
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
HELD_OUT_LOOKS = frozenset(
    {
        ("red", "ring"),
        ("blue", "cross"),
        ("green", "circle"),
        ("orange", "square"),
        ("purple", "triangle"),
    }
)
HELD_OUT_MOVES = frozenset(
    {
        ("red", "up"),
        ("green", "grow"),
        ("blue", "left"),
        ("yellow", "enter"),
        ("orange", "leave"),
    }
)

JITTER = 0.015  # picture units by which a centre can differ from the middle of its place
COLUMN = {"left": 0.25, "right": 0.75}
ROW = {"top": 0.25, "bottom": 0.62}  # above the strip at the bottom that carries text
SLOTS = 4  # parts of clip time, with one text each at most

_WHOLE_CLIP = (0.0, 1.0)

Sampler = Callable[[np.random.Generator, int], Scene]


def held_out_word(colour: str, word: str) -> bool:
    """Whether training scenes never show this word in this colour.

    This holds for one of eight combinations.
    """
    return (WORDS.index(word) + 5 * TEXT_COLOURS.index(colour)) % 8 == 0


def novelties(scene: Scene) -> int:
    """The number of held-out combinations in a scene."""
    count = 0
    for shot in (*scene.shots, *scene.inserts):
        for thing in shot.things:
            count += (thing.colour, thing.shape) in HELD_OUT_LOOKS
            count += (thing.colour, thing.motion) in HELD_OUT_MOVES
    for text in scene.texts:
        count += text.kind == "word" and held_out_word(text.colour, text.value)
    return count


def sample_scene(seed: int) -> Scene:
    """The clip of a seed.

    It has one shot of four things and four texts, or two shots of three or four things and two to
    four texts.
    """
    return _sample_from_split(seed, np.random.default_rng([seed, 5]), _clip)


def sample_sparse(seed: int) -> Scene:
    """A clip with less in it, for pretraining vision: two to four things a shot, none to four
    texts."""
    return _sample_from_split(seed, np.random.default_rng([seed, 0]), _sparse_clip)


def sample_still(seed: int) -> Scene:
    """The picture of a seed: two to four things and, in every other picture, a text."""
    return _sample_from_split(seed, np.random.default_rng([seed, 1]), sample_picture)


def sample_pair(seed: int) -> tuple[Scene, Scene]:
    """Two pictures that differ in one thing's colour, shape, texture or presence."""
    rng = np.random.default_rng([seed, 4])
    while True:
        first = _sample_from_split(seed, rng, sample_picture)
        second = _edited(rng, first)
        if _is_of_split(first, seed) and _is_of_split(second, seed):
            return first, second


def sample_story(seed: int, length: int) -> tuple[Scene, ...]:
    """Pictures of which each differs from the one before in one thing, as those of `sample_pair`.

    Args:
        seed: seeds from HELD_OUT on give held-out pictures only.
        length: number of pictures, 1 or more.
    """
    if length < 1:
        raise ConfigError(f"a story has 1 picture or more, not {length}")
    rng = np.random.default_rng([seed, 7])
    pictures = [_sample_from_split(seed, rng, sample_picture)]
    while len(pictures) < length:
        edited = _edited(rng, pictures[-1])
        if _is_of_split(edited, seed):
            pictures.append(edited)
    return tuple(pictures)


def _sample_from_split(seed: int, rng: np.random.Generator, sampler: Sampler) -> Scene:
    while True:
        scene = sampler(rng, seed)
        if _is_of_split(scene, seed):
            return scene


def _is_of_split(scene: Scene, seed: int) -> bool:
    return (novelties(scene) > 0) == (seed >= HELD_OUT)


def pick(rng: np.random.Generator, values: Sequence[str]) -> str:
    """One of some values, each as likely."""
    return values[int(rng.integers(len(values)))]


def _clip(rng: np.random.Generator, seed: int) -> Scene:
    if rng.random() < 0.3:
        shot = moving_shot(rng, 4, _WHOLE_CLIP, BACKGROUNDS)
        return Scene(seed, (shot,), _texts(rng, SLOTS, may_insert=True))
    shots = _two_shots(rng, min_things=3, max_things=4)
    num_texts = int(rng.integers(2, 5))
    return Scene(seed, shots, _texts(rng, num_texts, may_insert=False))


def _sparse_clip(rng: np.random.Generator, seed: int) -> Scene:
    shots: tuple[Shot, ...]
    if rng.random() < 0.45:
        num_things = int(rng.integers(3, 5))
        shots = (moving_shot(rng, num_things, _WHOLE_CLIP, BACKGROUNDS),)
    else:
        shots = _two_shots(rng, min_things=2, max_things=3)
    num_texts = int(rng.choice(SLOTS + 1, p=(0.1, 0.25, 0.25, 0.25, 0.15)))
    return Scene(seed, shots, _texts(rng, num_texts, may_insert=len(shots) == 1))


def _two_shots(rng: np.random.Generator, min_things: int, max_things: int) -> tuple[Shot, Shot]:
    cut = float(rng.uniform(0.44, 0.56))
    num_things = int(rng.integers(min_things, max_things + 1))
    first = moving_shot(rng, num_things, (0.0, cut), BACKGROUNDS)
    backgrounds = [background for background in BACKGROUNDS if background != first.background]
    num_things = int(rng.integers(min_things, max_things + 1))
    second = moving_shot(rng, num_things, (cut, 1.0), backgrounds)
    return first, second


def sample_picture(rng: np.random.Generator, seed: int) -> Scene:
    num_things = int(rng.integers(2, 5))
    places = _places(rng, num_things)
    colours = _colours(rng, num_things)
    things = _things(rng, places, colours, ["stay"] * num_things)
    background = pick(rng, BACKGROUNDS)
    pattern = pick(rng, PATTERNS)
    shot = Shot(background, pattern, "still", things, *_WHOLE_CLIP)
    texts: tuple[Text, ...] = ()
    if rng.random() < 0.5:
        texts = (sample_text(rng, set(), *_WHOLE_CLIP),)
    return Scene(seed, (shot,), texts)


def moving_shot(
    rng: np.random.Generator,
    num_things: int,
    span: tuple[float, float],
    backgrounds: Sequence[str],
) -> Shot:
    """A shot in which either the camera or the things can move."""
    places = _places(rng, num_things)
    colours = _colours(rng, num_things)
    if rng.random() < 0.2:
        camera = pick(rng, ("left", "right"))
        motions = ["stay"] * num_things
    else:
        camera = "still"
        motions = _motions(rng, places)
    things = _things(rng, places, colours, motions)
    background = pick(rng, backgrounds)
    pattern = pick(rng, PATTERNS)
    return Shot(background, pattern, camera, things, *span)


def _places(rng: np.random.Generator, count: int) -> list[str]:
    indices = sorted(int(index) for index in rng.permutation(len(PLACES))[:count])
    return [PLACES[index] for index in indices]


def _colours(rng: np.random.Generator, count: int) -> list[str]:
    return [COLOURS[int(index)] for index in rng.permutation(len(COLOURS))[:count]]


def _motions(rng: np.random.Generator, places: list[str]) -> list[str]:
    """A motion for each place.

    Two things side by side can bump into each other. The things never all move to the same side,
    because a panning camera gives the same pixels.
    """
    full_rows = [row for row in ROW if _count_in_row(places, row) == 2]
    while True:
        motions = [pick(rng, MOTIONS[:-1]) for _ in places]
        if full_rows and rng.random() < 0.25:
            row = pick(rng, full_rows)
            for index, place in enumerate(places):
                if place.startswith(row):
                    motions[index] = "bump"
        if set(motions) not in ({"left"}, {"right"}):
            return motions


def _count_in_row(places: list[str], row: str) -> int:
    return sum(place.startswith(row) for place in places)


def _things(
    rng: np.random.Generator, places: list[str], colours: list[str], motions: list[str]
) -> tuple[Thing, ...]:
    things = []
    for place, colour, motion in zip(places, colours, motions, strict=True):
        things.append(_thing(rng, place, colour, motion))
    return tuple(things)


def _thing(rng: np.random.Generator, place: str, colour: str, motion: str) -> Thing:
    row, column = place.split()
    dx, dy = (float(offset) for offset in rng.uniform(-JITTER, JITTER, size=2))
    return Thing(
        place=place,
        colour=colour,
        shape=pick(rng, SHAPES),
        texture=pick(rng, TEXTURES),
        size=pick(rng, SIZES),
        motion=motion,
        when=pick(rng, TIMES) if motion in ("enter", "leave") else "",
        centre=(COLUMN[column] + dx, ROW[row] + dy),
    )


def _texts(rng: np.random.Generator, count: int, may_insert: bool) -> tuple[Text, ...]:
    used: set[str] = set()
    texts = []
    for slot in sorted(int(slot) for slot in rng.permutation(SLOTS)[:count]):
        # Longer than the step between eight frames, so that one of them shows the text.
        length = float(rng.uniform(0.15, 0.22))
        start = slot / SLOTS + float(rng.uniform(0.01, 0.24 - length))
        texts.append(sample_text(rng, used, start, start + length))
    if texts and rng.random() < 0.5:
        index = int(rng.integers(len(texts)))
        texts[index] = _secret(rng, texts[index], used, may_insert)
    return tuple(texts)


def sample_text(rng: np.random.Generator, used: set[str], start: float, end: float) -> Text:
    """A word or number that is not in `used`, to which it is added."""
    kind = "number"
    values = NUMBERS
    if rng.random() < 0.65:
        kind = "word"
        values = WORDS
    value = pick_unused(rng, values, used)
    colour = pick(rng, TEXT_COLOURS)
    font = pick(rng, FONTS)
    return Text(kind, value, colour, "strip", font, start, end)


def _secret(rng: np.random.Generator, text: Text, used: set[str], may_insert: bool) -> Text:
    carrier = "strip"
    if may_insert and rng.random() < 0.5:
        carrier = "card"
    value = pick_unused(rng, WORDS, used)
    return replace(text, kind="secret", value=value, colour="black", carrier=carrier)


def pick_unused(rng: np.random.Generator, values: Sequence[str], used: set[str]) -> str:
    """One of some values that is not in `used`, to which it is added."""
    value = pick(rng, values)
    while value in used:
        value = pick(rng, values)
    used.add(value)
    return value


def _edited(rng: np.random.Generator, scene: Scene) -> Scene:
    """The same picture with one thing changed or removed; at least two things remain."""
    shot = scene.shots[0]
    index = int(rng.integers(len(shot.things)))
    edits = ["colour", "shape", "texture"]
    if len(shot.things) > 2:
        edits.append("gone")
    edit = pick(rng, edits)
    things = list(shot.things)
    if edit == "gone":
        del things[index]
    else:
        things[index] = _changed(rng, things[index], edit, shot)
    return replace(scene, shots=(replace(shot, things=tuple(things)),))


def _changed(rng: np.random.Generator, thing: Thing, attribute: str, shot: Shot) -> Thing:
    """The thing with another colour, shape or texture; the colour is new in the shot."""
    if attribute == "colour":
        used = {neighbour.colour for neighbour in shot.things}
        colours = [colour for colour in COLOURS if colour not in used]
        return replace(thing, colour=pick(rng, colours))
    if attribute == "shape":
        shapes = [shape for shape in SHAPES if shape != thing.shape]
        return replace(thing, shape=pick(rng, shapes))
    textures = [texture for texture in TEXTURES if texture != thing.texture]
    return replace(thing, texture=pick(rng, textures))
