"""How much of a long prompt is read between two rounds of the rows that are running."""

from __future__ import annotations

FIRST = 64
MIN_TOKENS = 16


class PartSize:
    """The tokens of a prompt that can be read in a given time, by the last part that was read."""

    def __init__(self) -> None:
        self._seconds_per_token: float | None = None

    def record(self, num_tokens: int, seconds: float) -> None:
        if num_tokens:
            self._seconds_per_token = seconds / num_tokens

    def within(self, seconds: float) -> int:
        if not self._seconds_per_token:
            return FIRST
        return max(MIN_TOKENS, int(seconds / self._seconds_per_token))
