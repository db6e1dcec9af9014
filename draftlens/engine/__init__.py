"""The loop and its state."""

from draftlens.engine.serial import decode
from draftlens.engine.session import Session
from draftlens.engine.stats import DEFINITIONS, PHASES, Clock, Stats

__all__ = ["DEFINITIONS", "PHASES", "Clock", "Session", "Stats", "decode"]
