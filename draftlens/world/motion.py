"""Where things are at a time of their shot."""

from draftlens.world.scene import Shot, Thing

RADIUS = {"small": 0.1, "large": 0.15}
SPREAD = (0.065, 0.16)  # radius of a thing that grows or shrinks, at its smallest and largest
TRAVEL = {"x": 0.1, "y": 0.075}  # half the way of a thing that moves, in picture units
PAN = 0.26  # the whole way of a panning camera
SPAN = {
    "early": (0.05, 0.35),
    "late": (0.55, 0.35),
}  # start and length of entering or leaving, in shot time

Pose = tuple[float, float, float]


def pose(thing: Thing, shot: Shot, time: float) -> Pose:
    """Centre x, centre y and radius at a shot time in 0..1, in picture units; a centre may lie
    outside the picture."""
    x, y = thing.centre
    radius = RADIUS[thing.size]
    shift = 2 * time - 1
    if thing.motion in ("left", "right"):
        x += TRAVEL["x"] * (shift if thing.motion == "right" else -shift)
    elif thing.motion in ("up", "down"):
        y += TRAVEL["y"] * (shift if thing.motion == "down" else -shift)
    elif thing.changes_size:
        share = time if thing.motion == "grow" else 1 - time
        radius = SPREAD[0] + (SPREAD[1] - SPREAD[0]) * share
    elif thing.motion in ("enter", "leave"):
        start, length = SPAN[thing.when]
        done = min(max((time - start) / length, 0.0), 1.0)
        outside = -1.2 * radius if thing.side == "left" else 1 + 1.2 * radius
        x += (outside - x) * (1 - done if thing.motion == "enter" else done)
    elif thing.motion == "bump":
        x += _way_to_neighbour(thing, shot) * (1 - abs(shift))
    return x + pan(shot, time), y, radius


def pan(shot: Shot, time: float) -> float:
    """How far the camera has moved what it sees to the right."""
    if shot.camera == "still":
        return 0.0
    return PAN * (time - 0.5) * (1 if shot.camera == "left" else -1)


def _way_to_neighbour(thing: Thing, shot: Shot) -> float:
    """From its centre to where it touches the thing beside it, half-way between both, to the
    right."""
    row = thing.place.split()[0]
    left, right = (other for other in shot.things if other.place.split()[0] == row)
    gap = right.centre[0] - left.centre[0] - RADIUS[left.size] - RADIUS[right.size]
    return gap / 2 if thing is left else -gap / 2
