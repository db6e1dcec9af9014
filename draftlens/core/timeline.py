"""What each lane of a call did when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A stretch of time of one lane.

    Args:
        lane: `target` or `draft`.
        kind: what it did, such as `verify`.
        start, end: seconds of `time.perf_counter`, which all processes of a machine share.
        tokens: number of tokens that it was about.
        outcome: what became of them.
    """

    lane: str
    kind: str
    start: float
    end: float
    tokens: int = 0
    outcome: str = ""
