"""The position and size of things at a time of their shot."""

from typing import NamedTuple

from draftlens_lab.world.scene import Shot, Thing

RADIUS = {"small": 0.1, "large": 0.15}
SPREAD = (0.065, 0.16)  # smallest and largest radius of a thing that grows or shrinks
TRAVEL_X = 0.1  # half the distance that a thing moves, in picture units
TRAVEL_Y = 0.075
PAN = 0.26  # the whole distance that a panning camera moves
SPAN = {"early": (0.05, 0.35), "late": (0.55, 0.35)}  # start and length of entering or leaving
_OUTSIDE = 1.2  # distance from the edge of a thing outside the picture, in radii

_DIRECTIONS = {"left": -1, "right": 1, "up": -1, "down": 1}


class Pose(NamedTuple):
    """The position and size of a thing, in picture units.

    Attributes:
        x: of the centre, which may lie outside the picture.
        y: of the centre.
        radius: of the circle around the thing.
    """

    x: float
    y: float
    radius: float


def pose(thing: Thing, shot: Shot, time: float) -> Pose:
    """The position and size of a thing at a shot time in 0..1."""
    x, y = thing.centre
    radius = RADIUS[thing.size]
    shift = 2 * time - 1
    if thing.motion in ("left", "right"):
        x += TRAVEL_X * (shift * _DIRECTIONS[thing.motion])
    elif thing.motion in ("up", "down"):
        y += TRAVEL_Y * (shift * _DIRECTIONS[thing.motion])
    elif thing.changes_size:
        radius = _changing_radius(thing, time)
    elif thing.motion in ("enter", "leave"):
        outside = -_OUTSIDE * radius if thing.side == "left" else 1 + _OUTSIDE * radius
        x += (outside - x) * _share_outside(thing, time)
    elif thing.motion == "bump":
        x += _distance_to_contact(thing, shot) * (1 - abs(shift))
    return Pose(x + pan(shot, time), y, radius)


def pan(shot: Shot, time: float) -> float:
    """How far the view is shifted to the right by the camera at a shot time, in picture units."""
    if shot.camera == "still":
        return 0.0
    sign = 1 if shot.camera == "left" else -1
    return PAN * (time - 0.5) * sign


def _changing_radius(thing: Thing, time: float) -> float:
    smallest, largest = SPREAD
    share = time if thing.motion == "grow" else 1 - time
    return smallest + (largest - smallest) * share


def _share_outside(thing: Thing, time: float) -> float:
    start, length = SPAN[thing.when]
    progress = min(max((time - start) / length, 0.0), 1.0)
    return 1 - progress if thing.motion == "enter" else progress


def _distance_to_contact(thing: Thing, shot: Shot) -> float:
    """From the rest position of a bumping thing to where it touches its neighbour.

    Both move half of the gap between them. Positive distances point to the right.
    """
    row = thing.place.split()[0]
    left, right = (neighbour for neighbour in shot.things if neighbour.place.split()[0] == row)
    gap = right.centre[0] - left.centre[0] - RADIUS[left.size] - RADIUS[right.size]
    return gap / 2 if thing is left else -gap / 2
