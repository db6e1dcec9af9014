"""What a clip shows, as plain data: shots of things on backgrounds, and the texts laid over them.

Positions and sizes are in picture units: 0 is the left or top edge, 1 the right or bottom one. Clip
time runs from 0 (first instant) to 1 (last); within a shot, shot time does the same.
"""

from dataclasses import dataclass

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "ring", "cross")
TEXTURES = ("plain", "striped", "spotted")
SIZES = ("small", "large")
PLACES = (
    "top left",
    "top right",
    "bottom left",
    "bottom right",
)  # reading order: the order of every caption
MOTIONS = ("stay", "left", "right", "up", "down", "grow", "shrink", "enter", "leave", "bump")
TIMES = ("early", "late")  # when something enters or leaves, within its shot
BACKGROUNDS = ("black", "navy", "grey", "white")
PATTERNS = ("plain", "checked", "lined")
CAMERAS = ("still", "left", "right")

WORDS = (
    *(
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
    ),
    *(
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
    ),
)
NUMBERS = tuple(str(n) for n in range(10, 100))
TEXT_COLOURS = ("white", "yellow", "green", "pink")
FONTS = ("sans", "serif", "mono")


@dataclass(frozen=True)
class Thing:
    """One shape: where it lives (a quarter of the picture and its centre there), how it looks, what
    it does."""

    place: str
    colour: str
    shape: str
    texture: str
    size: str
    motion: str
    when: str  # of TIMES for "enter" and "leave", empty otherwise
    centre: tuple[float, float]

    @property
    def side(self) -> str:
        """The outer side of its quarter, through which it enters or leaves."""
        return self.place.split()[1]

    @property
    def changes_size(self) -> bool:
        return self.motion in ("grow", "shrink")


@dataclass(frozen=True)
class Text:
    """A word or number on the screen from ``start`` to ``end`` in clip time.

    ``kind`` is "word" or "number" (coloured letters on a black strip) or "secret": a needle to be
    found, black letters on a white strip laid over the frames (``carrier`` "strip", VNBench's
    edited needle) or on a card that stands in for them ("card", its inserted needle).
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
    """Things in reading order on a background, from ``start`` to ``end`` in clip time."""

    background: str
    pattern: str
    camera: str
    things: tuple[Thing, ...]
    start: float
    end: float


@dataclass(frozen=True)
class Scene:
    """A clip, or a picture (one shot in which nothing moves); ``seed`` says where it came from."""

    seed: int
    shots: tuple[Shot, ...]
    texts: tuple[Text, ...]

    @property
    def secret(self) -> Text | None:
        """The needle, if there is one."""
        return next((text for text in self.texts if text.kind == "secret"), None)
