"""The decoding loop and its state."""

from draftlens.decoding.loop import decode, step
from draftlens.decoding.plan import SCHEDULES, Plan, make_schedule
from draftlens.decoding.session import Session

__all__ = ["SCHEDULES", "Plan", "Session", "decode", "make_schedule", "step"]
