"""When the tokens of an answer came, without the time in which other programs had the core."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.core.stats import Clock
from draftlens.engine import Engine
from draftlens.inputs import Inputs


@dataclass(frozen=True)
class Moment:
    """A moment of an answer.

    Args:
        wall: seconds of `time.perf_counter`.
        own: seconds since the request in which the target's thread ran or slept, so without those
            in which it waited for a core that another program had.
    """

    wall: float
    own: float


@dataclass(frozen=True)
class Run:
    """One answer.

    Args:
        tokens: the answer.
        moments: the request, and when each of the tokens came.
        lost: why its lane was lost; None if it was not.
    """

    tokens: list[int]
    moments: list[Moment]
    lost: str | None

    @property
    def own(self) -> float:
        """Seconds from the request to the last token, see `Moment.own`."""
        return self.moments[-1].own

    @property
    def wall(self) -> float:
        """Seconds from the request to the last token."""
        return self.moments[-1].wall - self.moments[0].wall

    @property
    def per_token(self) -> float:
        """Seconds from one token to the next, see `Moment.own`."""
        return (self.own - self.moments[1].own) / max(len(self.tokens) - 1, 1)

    def at(self, wall: float) -> tuple[int, float]:
        """How many tokens had come at a moment, and its `Moment.own`."""
        before = [moment for moment in self.moments if moment.wall <= wall]
        if not before:
            return 0, 0.0
        latest = before[-1].own + wall - before[-1].wall
        behind = self.moments[len(before) :]
        return len(before) - 1, min([latest, *(moment.own for moment in behind)])


def queued() -> float:
    """Seconds in which this thread has waited for a core so far; 0 where the system does not
    count them."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    if not path.exists():
        return 0.0
    return int(path.read_text().split()[1]) / 1e9


def timed_answer(
    engine: Engine,
    inputs: Inputs,
    method: Mapping[str, Any],
    options: Mapping[str, Any],
    clock: Clock | None = None,
) -> Run:
    """One answer with the moments of its tokens.

    Args:
        engine: the models.
        inputs: the processors' output for one prompt.
        method: of decoding.
        options: of `generate`.
        clock: as for `Engine.answer`.
    """
    began = time.perf_counter()
    waited = queued()

    def now() -> Moment:
        wall = time.perf_counter()
        return Moment(wall, wall - began - (queued() - waited))

    moments = [now()]
    stream = engine.answer(inputs, method=dict(method), clock=clock, **options)
    for chunk in stream:
        moments += [now()] * len(chunk.tokens)
    result = stream.result
    return Run(result.tokens[0], moments, result.stats.worker_lost)
