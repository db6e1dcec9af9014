"""When the target takes guesses, and how far the draft may run ahead."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Protocol

RECENT = 32
"""Timings and guesses that an estimate is made from."""

LONGEST_WAIT = 8
"""Most guesses that the target waits for behind a correction."""

DEFAULT_WINDOW = 8
"""Most guesses in one check where the caller names no number."""


class Pace(Protocol):
    """Decides when the target takes guesses and how far the draft runs ahead."""

    @property
    def meets(self) -> bool:
        """Whether the lanes wait for each other at the end of every round."""
        ...

    @property
    def ahead(self) -> int:
        """Guesses that the draft may make before the target's first token."""
        ...

    @property
    def most(self) -> int:
        """Most guesses in one check."""
        ...

    @property
    def guesses_to_wait_for(self) -> int:
        """Guesses that the target waits for where it has none, as behind a correction."""
        ...

    def limit(self, known: int, written: int) -> int:
        """The length up to which a row may be guessed after a decision.

        Args:
            known: length of the answer.
            written: length of answer and guesses that agree with it.
        """
        ...

    def passed(self, seconds: float) -> None:
        """The target has made a pass."""
        ...

    def guessed(self, seconds: float) -> None:
        """The draft has made a guess."""
        ...

    def judged(self, is_right: bool) -> None:
        """A guess was compared with the answer."""
        ...


@dataclass(frozen=True)
class LockStep:
    """Both lanes do their share of a round and then meet (ParallelVLM, algorithm 1). The tokens,
    the passes and the guesses do not depend on time.

    Args:
        length: γ, guesses of the draft in one round.
    """

    length: int
    meets: bool = True
    guesses_to_wait_for: int = 0

    @property
    def ahead(self) -> int:
        """The first window is written while the target reads the prompt."""
        return self.length

    @property
    def most(self) -> int:
        """All guesses of a round."""
        return self.length

    def limit(self, known: int, written: int) -> int:
        """One window more."""
        return written + self.length

    def passed(self, seconds: float) -> None:
        """Times do not matter."""

    def guessed(self, seconds: float) -> None:
        """Times do not matter."""

    def judged(self, is_right: bool) -> None:
        """Verdicts do not matter."""


class Eager:
    """A target that is free takes the guesses that are there.

    Args:
        window: most guesses in one check.
        wait: s, how many guesses the target waits for where it has none; None for the number that
            the measured times suggest.
    """

    meets = False

    def __init__(self, window: int = DEFAULT_WINDOW, wait: int | None = None) -> None:
        self.most = window
        self.wait = wait
        self._passes: deque[float] = deque(maxlen=RECENT)
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._verdicts: deque[bool] = deque(maxlen=8 * RECENT)

    @property
    def ahead(self) -> int:
        """The guesses that are being checked, and the next window."""
        return 2 * self.most + 1

    @property
    def guesses_to_wait_for(self) -> int:
        """s at the moment; 1 before anything is measured."""
        if self.wait is not None:
            return self.wait
        if not self._passes or not self._steps:
            return 1
        return best_wait(self.rate, median(self._passes) / self.step_seconds, self.most)

    @property
    def step_seconds(self) -> float:
        """Median of recent guesses."""
        return median(self._steps) if self._steps else 0.0

    @property
    def rate(self) -> float:
        """β, the share of recent guesses that were right; 0.5 before there are any."""
        return (sum(self._verdicts) + 1) / (len(self._verdicts) + 2)

    def limit(self, known: int, written: int) -> int:
        """As far ahead of the answer as always."""
        return known + self.ahead

    def passed(self, seconds: float) -> None:
        """Count the time."""
        self._passes.append(seconds)

    def guessed(self, seconds: float) -> None:
        """Count the time."""
        self._steps.append(max(seconds, 1e-9))

    def judged(self, is_right: bool) -> None:
        """Count the verdict."""
        self._verdicts.append(is_right)


def best_wait(rate: float, ratio: float, window: int) -> int:
    """How many guesses to wait for behind a correction.

    One token of the answer costs (1 - β)(1 + w(s) / c + β^(s + 1) / (1 - β^γ)) passes, where the
    terms are the pass that corrects, the wait w(s), and the passes until the next correction. The
    wait for s guesses takes s + 1/2 steps of the draft, which notices a correction at the end of a
    step; without guesses to wait for there is none.

    Args:
        rate: β, the probability that a guess is right.
        ratio: c, seconds of a pass of the target over seconds of a guess of the draft.
        window: γ, most guesses in one check.

    Returns:
        s, from 0 to `LONGEST_WAIT` and at most `window`.
    """
    rate = min(rate, 0.999)

    def passes(wait: int) -> float:
        waited = wait + 0.5 if wait else 0.0
        later = rate ** (wait + 1) / (1 - rate ** max(window, 1))
        return waited / max(ratio, 1e-9) + later

    return min(range(min(LONGEST_WAIT, window) + 1), key=passes)
