"""Reels: clips of 4 to 16 shots, in which a question can be about a small part.

Every shot of a reel has a text of its own, which is on the screen as long as the shot. One thing,
the hero, is in several shots: it enters in the first of them and leaves in the last. A reel can
have a needle: a secret word or a picture in one frame.
"""

from dataclasses import dataclass, replace

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens_lab.world.sample import (
    HELD_OUT,
    held_out_word,
    moving_shot,
    novelties,
    pick,
    pick_unused,
    sample_picture,
    sample_text,
)
from draftlens_lab.world.scene import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZES,
    TEXTURES,
    TIMES,
    WORDS,
    Scene,
    Shot,
    Text,
    Thing,
)

MIN_SHOTS = 4
MAX_SHOTS = 16
SHOT_FRAMES = 4  # fewest frames of a shot, which show everything in it
INSERT_FRAMES = 8  # fewest frames of a shot for one of them to be replaced
SHOT_THINGS = (3, 4)  # fewest and most things of a shot
HERO_SHOTS = (3, 6)  # fewest and most shots with the hero
NEEDLES = ("strip", "card", "picture")

_HERO_MOTIONS = ("stay", "left", "right", "up", "down", "grow", "shrink")


@dataclass(frozen=True)
class Reel:
    """A clip of several shots, for a number of frames.

    Args:
        hero: for each shot with the hero its index and the hero in it, in order of time.
    """

    scene: Scene
    frames: int
    hero: tuple[tuple[int, Thing], ...]

    @property
    def texts(self) -> tuple[Text, ...]:
        return tuple(text for text in self.scene.texts if text.kind != "secret")


def sample_reel(seed: int, frames: int, needle: str | None = None) -> Reel:
    """The reel of a seed.

    Args:
        frames: number of frames, 16 or more.
        needle: of `NEEDLES`; None for none. A card or a picture needs a shot of 8 frames; where no
            shot has them, the needle is on a strip.
    """
    if frames < MIN_SHOTS * SHOT_FRAMES:
        raise ConfigError(
            f"{frames} frames are too few for a reel: "
            f"{MIN_SHOTS} shots of {SHOT_FRAMES} frames each are the least"
        )
    if needle is not None and needle not in NEEDLES:
        raise ConfigError(f"there is no needle {needle!r}; there are {', '.join(NEEDLES)}")
    rng = np.random.default_rng([seed, frames, 6])
    while True:
        reel = _reel(rng, seed, frames, needle)
        if (novelties(reel.scene) > 0) == (seed >= HELD_OUT):
            return reel


def any_needle(rng: np.random.Generator) -> str:
    return pick(rng, NEEDLES)


def _reel(rng: np.random.Generator, seed: int, frames: int, needle: str | None) -> Reel:
    """A reel; without held-out combinations if the seed is one of training."""
    most = min(MAX_SHOTS, frames // SHOT_FRAMES)
    lengths = _shot_lengths(rng, int(rng.integers(MIN_SHOTS, most + 1)), frames)
    shots = _shots(rng, seed, lengths, frames)
    shots, hero = _with_hero(rng, seed, shots)
    used: set[str] = set()
    texts = [_shot_text(rng, seed, used, shot) for shot in shots]
    scene = Scene(seed, tuple(shots), tuple(texts))
    if needle is not None:
        scene = _with_needle(rng, scene, needle, lengths, used)
    return Reel(scene, frames, hero)


def _allowed(scene: Scene) -> bool:
    return scene.seed >= HELD_OUT or novelties(scene) == 0


def _shot_lengths(rng: np.random.Generator, count: int, frames: int) -> list[int]:
    """The number of frames of each shot: the least, and a random share of the rest."""
    rest = frames - count * SHOT_FRAMES
    shares = rng.dirichlet([2.0] * count)
    extra = [int(share * rest) for share in shares]
    extra[-1] += rest - sum(extra)
    return [SHOT_FRAMES + more for more in extra]


def _shots(rng: np.random.Generator, seed: int, lengths: list[int], frames: int) -> list[Shot]:
    """Shots, each on another background than the one before."""
    shots: list[Shot] = []
    first = 0
    for length in lengths:
        span = (first / frames, (first + length) / frames)
        backgrounds = [
            background
            for background in BACKGROUNDS
            if not shots or background != shots[-1].background
        ]
        shot = _shot(rng, span, backgrounds)
        while not _allowed(Scene(seed, (shot,), ())):
            shot = _shot(rng, span, backgrounds)
        shots.append(shot)
        first += length
    return shots


def _shot(rng: np.random.Generator, span: tuple[float, float], backgrounds: list[str]) -> Shot:
    fewest, most = SHOT_THINGS
    return moving_shot(rng, int(rng.integers(fewest, most + 1)), span, backgrounds)


def _with_hero(
    rng: np.random.Generator, seed: int, shots: list[Shot]
) -> tuple[list[Shot], tuple[tuple[int, Thing], ...]]:
    colour, shape, texture = _hero_look(rng, seed)
    shots = [_without_look(shot, colour, shape) for shot in shots]
    fewest, most = HERO_SHOTS
    count = int(rng.integers(fewest, min(most, len(shots)) + 1))
    indices = sorted(int(index) for index in rng.permutation(len(shots))[:count])
    hero = []
    for number, index in enumerate(indices):
        motion = pick(rng, _HERO_MOTIONS)
        if number == 0:
            motion = "enter"
        elif number == count - 1:
            motion = "leave"
        while not _allowed_motion(seed, colour, motion):
            motion = pick(rng, _HERO_MOTIONS)
        shots[index], thing = _with_thing(rng, shots[index], colour, shape, texture, motion)
        hero.append((index, thing))
    return shots, tuple(hero)


def _hero_look(rng: np.random.Generator, seed: int) -> tuple[str, str, str]:
    """The hero's colour, shape and texture; in training it may enter and leave in its colour."""
    while True:
        colour = pick(rng, COLOURS)
        shape = pick(rng, SHAPES)
        texture = pick(rng, TEXTURES)
        thing = Thing("top left", colour, shape, texture, "small", "stay", "", (0.0, 0.0))
        moves = all(_allowed_motion(seed, colour, motion) for motion in ("enter", "leave"))
        if moves and _allowed(Scene(seed, (_shot_of(thing),), ())):
            return colour, shape, texture


def _allowed_motion(seed: int, colour: str, motion: str) -> bool:
    # A plain circle is no held-out look in any colour but green.
    shape = "square" if colour == "green" else "circle"
    thing = Thing("top left", colour, shape, "plain", "small", motion, "", (0.0, 0.0))
    return _allowed(Scene(seed, (_shot_of(thing),), ()))


def _shot_of(thing: Thing) -> Shot:
    return Shot("black", "plain", "still", (thing,), 0.0, 1.0)


def _without_look(shot: Shot, colour: str, shape: str) -> Shot:
    """The shot with another shape in place of the hero's, where it is in the hero's colour."""
    things = []
    for thing in shot.things:
        if (thing.colour, thing.shape) == (colour, shape):
            others = [other for other in SHAPES if other != shape]
            # The next shape that training scenes show in this colour.
            for other in others:
                changed = replace(thing, shape=other)
                if novelties(Scene(0, (_shot_of(changed),), ())) <= novelties(
                    Scene(0, (_shot_of(thing),), ())
                ):
                    thing = changed
                    break
        things.append(thing)
    return replace(shot, things=tuple(things))


def _with_thing(
    rng: np.random.Generator, shot: Shot, colour: str, shape: str, texture: str, motion: str
) -> tuple[Shot, Thing]:
    same_colour = [i for i, thing in enumerate(shot.things) if thing.colour == colour]
    index = same_colour[0] if same_colour else int(rng.integers(len(shot.things)))
    old = shot.things[index]
    when = pick(rng, TIMES) if motion in ("enter", "leave") else ""
    hero = replace(
        old,
        colour=colour,
        shape=shape,
        texture=texture,
        size=pick(rng, SIZES),
        motion=motion,
        when=when,
    )
    things = list(shot.things)
    things[index] = hero
    if old.motion == "bump":
        # Its neighbour has nothing to bump into any more.
        things = [
            replace(thing, motion="stay") if thing.motion == "bump" else thing for thing in things
        ]
    if {thing.motion for thing in things} in ({"left"}, {"right"}):
        # This would appear as a panning camera.
        other = (index + 1) % len(things)
        things[other] = replace(things[other], motion="stay")
    return replace(shot, camera="still", things=tuple(things)), hero


def _shot_text(rng: np.random.Generator, seed: int, used: set[str], shot: Shot) -> Text:
    while True:
        mine = set(used)
        text = sample_text(rng, mine, shot.start, shot.end)
        is_new = text.kind == "word" and held_out_word(text.colour, text.value)
        if seed >= HELD_OUT or not is_new:
            used |= mine
            return text


def _with_needle(
    rng: np.random.Generator, scene: Scene, needle: str, lengths: list[int], used: set[str]
) -> Scene:
    long_shots = [index for index, length in enumerate(lengths) if length >= INSERT_FRAMES]
    if not long_shots:
        needle = "strip"
    allowed = range(len(lengths)) if needle == "strip" else long_shots
    index = int(rng.choice(np.asarray(allowed)))
    frames = sum(lengths)
    frame = sum(lengths[:index]) + int(rng.integers(lengths[index]))
    start, end = frame / frames, (frame + 1) / frames
    if needle == "picture":
        insert = _inserted_picture(rng, scene.seed, start, end)
        return replace(scene, inserts=(insert,))
    value = pick_unused(rng, WORDS, used)
    font = scene.texts[index].font
    secret = Text("secret", value, "black", needle, font, start, end)
    return replace(scene, texts=(*scene.texts[: index + 1], secret, *scene.texts[index + 1 :]))


def _inserted_picture(rng: np.random.Generator, seed: int, start: float, end: float) -> Shot:
    while True:
        picture = sample_picture(rng, seed)
        shot = replace(picture.shots[0], start=start, end=end)
        if _allowed(Scene(seed, (shot,), ())):
            return shot
