"""Drafting in a lane of its own, at the same time as the target works."""

from draftlens.lanes.drafter import LaneDrafter
from draftlens.lanes.link import LaneLostError, Link
from draftlens.lanes.pace import Eager, LockStep, Pace
from draftlens.lanes.place import link_of
from draftlens.lanes.reading import OwnPrompt, Reading, TargetsPrompt

__all__ = [
    "Eager",
    "LaneDrafter",
    "LaneLostError",
    "Link",
    "LockStep",
    "OwnPrompt",
    "Pace",
    "Reading",
    "TargetsPrompt",
    "link_of",
]
