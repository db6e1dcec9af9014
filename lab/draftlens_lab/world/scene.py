"""The content of a clip as plain data: shots of things on backgrounds, and texts laid over them.

Positions and sizes are in picture units: 0 is the left or top edge, 1 the right or bottom one. Clip
time runs from 0 (first instant) to 1 (last). Shot time does the same within a shot.
"""

from dataclasses import dataclass

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "ring", "cross")
TEXTURES = ("plain", "striped", "spotted")
SIZES = ("small", "large")
# In reading order, which is the order of every caption.
PLACES = ("top left", "top right", "bottom left", "bottom right")
MOTIONS = ("stay", "left", "right", "up", "down", "grow", "shrink", "enter", "leave", "bump")
TIMES = ("early", "late")  # when a thing enters or leaves, within its shot
BACKGROUNDS = ("black", "navy", "grey", "white")
PATTERNS = ("plain", "checked", "lined")
CAMERAS = ("still", "left", "right")

WORDS = (
    "plum",
    "king",
    "rain",
    "ship",
    "moon",
    "fork",
    "leaf",
    "door",
    "bird",
    "snow",
    "lamp",
    "tree",
    "gold",
    "milk",
    "star",
    "rose",
    "wolf",
    "salt",
    "bell",
    "coin",
    "drum",
    "fish",
    "hill",
    "kite",
)
NUMBERS = tuple(str(n) for n in range(10, 100))
TEXT_COLOURS = ("white", "yellow", "green", "pink")
FONTS = ("sans", "serif", "mono")


@dataclass(frozen=True)
class Thing:
    """One shape.

    Attributes:
        place: the quarter of the picture in which it lies, of `PLACES`.
        colour: of `COLOURS`.
        shape: of `SHAPES`.
        texture: of `TEXTURES`.
        size: of `SIZES`.
        motion: of `MOTIONS`.
        when: of `TIMES` for the motions "enter" and "leave", empty otherwise.
        centre: x and y of its centre at rest, in picture units.
    """

    place: str
    colour: str
    shape: str
    texture: str
    size: str
    motion: str
    when: str
    centre: tuple[float, float]

    @property
    def side(self) -> str:
        """The outer side of its quarter, "left" or "right", at which it enters or leaves."""
        return self.place.split()[1]

    @property
    def changes_size(self) -> bool:
        return self.motion in ("grow", "shrink")


@dataclass(frozen=True)
class Text:
    """A word or number on the screen.

    Attributes:
        kind: "word" or "number" for coloured letters on a black strip; "secret" for a needle to
            find, in black letters on white.
        value: the word or number, in lower case.
        colour: colour of the letters, of `TEXT_COLOURS`; "black" for a secret.
        carrier: "strip" for a strip over the frames (VNBench's edited needle), or "card" for a card
            that replaces the frames (VNBench's inserted needle).
        font: of `FONTS`.
        start: clip time at which it appears.
        end: clip time at which it disappears.
    """

    kind: str
    value: str
    colour: str
    carrier: str
    font: str
    start: float
    end: float


@dataclass(frozen=True)
class Shot:
    """Things on a background.

    Attributes:
        background: of `BACKGROUNDS`.
        pattern: of `PATTERNS`.
        camera: of `CAMERAS`.
        things: in reading order.
        start: clip time at which the shot begins.
        end: clip time at which it ends.
    """

    background: str
    pattern: str
    camera: str
    things: tuple[Thing, ...]
    start: float
    end: float


@dataclass(frozen=True)
class Scene:
    """A clip, or a picture (one shot in which nothing moves).

    Attributes:
        seed: the seed from which the scene was sampled.
        shots: in order of time; one or two, or 4 to 16 in a reel.
        texts: in order of time; a later one is painted over an earlier one.
        inserts: pictures on a card that replace frames; the things in them do not move.
    """

    seed: int
    shots: tuple[Shot, ...]
    texts: tuple[Text, ...]
    inserts: tuple[Shot, ...] = ()

    @property
    def secret(self) -> Text | None:
        """The secret word, or None if the scene has none."""
        for text in self.texts:
            if text.kind == "secret":
                return text
        return None
