"""The decoding loop and its state."""

from draftlens.decode.plan import SCHEDULES, Plan, make_schedule
from draftlens.decode.serial import decode
from draftlens.decode.session import Session

__all__ = ["SCHEDULES", "Plan", "Session", "decode", "make_schedule"]
