"""Progress of a long measurement, reported to a listener such as a progress bar."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """Receives the progress of a measurement."""

    def plan(self, work: float) -> None:
        """Called once with the total amount of work."""

    def begin(self, description: str) -> None:
        """Called before each step with its description."""

    def done(self, work: float) -> None:
        """Called with the amount of work that was completed or skipped since the last call."""


class SilentProgress:
    """A listener that ignores every report."""

    def plan(self, work: float) -> None: ...

    def begin(self, description: str) -> None: ...

    def done(self, work: float) -> None: ...
