"""What a round is expected to bring and to cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expectation:
    """The result of a round, for each running row.

    Args:
        tokens: that are emitted, the one of the target included.
        seconds: of drafting and verifying.
    """

    tokens: float
    seconds: float

    def speed(self, trust: float = 1.0) -> float:
        """Tokens per second, if `trust` times as many draft tokens are accepted."""
        return (1 + trust * (self.tokens - 1)) / self.seconds


@dataclass(frozen=True)
class CopiedRun:
    """Copied tokens, and the probability that each of them is accepted if what they follow is."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]


NOTHING_COPIED = CopiedRun((), ())
