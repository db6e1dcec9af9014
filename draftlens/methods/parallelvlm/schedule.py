"""When the target takes guesses, and how far the draft may run ahead."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Protocol

RECENT = 32
"""Timings and guesses that an estimate is made from."""

LONGEST_WAIT = 8
"""Most guesses that the target waits for behind a correction."""

LONGEST_WINDOW = 16
"""Most guesses in one check where the caller names no number."""

FIRST_WINDOW = 4
"""Most guesses in one check before anything is measured."""

TRIAL_AFTER = 12
"""Passes after which it is asked whether the draft pays; twice as many after each time it does."""

TRIAL = 3
"""Passes for which the draft rests to see how fast plain decoding is."""

REST = 60
"""Passes for which it rests where plain decoding is faster."""

SELDOM_RIGHT = 1.8
"""Tokens a pass below which plain decoding might be faster: passes beside a draft take longer."""

WORTH_FILLING = 1.5
"""c from which on the target waits for a full window; a slower draft would hold it up."""

LONG = 8
"""Length of a window from which on all of its guesses must be right with the chance `WHOLE`."""
WHOLE = 0.3

LIKELY = 0.62
"""The target waits behind a correction only for guesses that are all right with this chance: misses
cluster, so another one is likelier there than β says."""


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
    def longest(self) -> int:
        """Most guesses that there will ever be in one check."""
        ...

    @property
    def window(self) -> int:
        """Most guesses in the next check."""
        ...

    def guesses_to_wait_for(self, is_new: bool) -> int:
        """Guesses that the target waits for before it checks a row.

        Args:
            is_new: whether no guess of the row has been checked since its last correction.
        """
        ...

    def limit(self, known: int, written: int) -> int:
        """The length up to which a row may be guessed after a decision.

        Args:
            known: length of the answer.
            written: length of answer and guesses that agree with it.
        """
        ...

    def passed(self, seconds: float, waited: float, tokens: float) -> None:
        """The target has made a pass.

        Args:
            seconds: of the pass.
            waited: seconds of the wait for guesses before it.
            tokens: that it emitted, mean of the running rows.
        """
        ...

    def guessed(self, seconds: float) -> None:
        """The draft has made a guess."""
        ...

    def judged(self, is_right: bool) -> None:
        """A guess was compared with the answer."""
        ...


@dataclass
class _Rates:
    """Passes of the target with what they took and gave."""

    passes: int = 0
    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        """Count a pass."""
        self.passes += 1
        self.seconds += seconds
        self.tokens += tokens

    @property
    def tokens_a_pass(self) -> float:
        """Mean number of tokens."""
        return self.tokens / max(self.passes, 1)

    @property
    def tokens_a_second(self) -> float:
        """Tokens by time."""
        return self.tokens / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class LockStep:
    """Both lanes do their share of a round and then meet (ParallelVLM, algorithm 1). The tokens,
    the passes and the guesses do not depend on time.

    Args:
        length: γ, guesses of the draft in one round.
    """

    length: int
    meets: bool = True

    @property
    def ahead(self) -> int:
        """The first window is written while the target reads the prompt."""
        return self.length

    @property
    def longest(self) -> int:
        """All guesses of a round."""
        return self.length

    @property
    def window(self) -> int:
        """All guesses of a round."""
        return self.length

    def guesses_to_wait_for(self, is_new: bool) -> int:
        """None: the lanes meet at the end of a round."""
        return 0

    def limit(self, known: int, written: int) -> int:
        """One window more."""
        return written + self.length

    def passed(self, seconds: float, waited: float, tokens: float) -> None:
        """Times do not matter."""

    def guessed(self, seconds: float) -> None:
        """Times do not matter."""

    def judged(self, is_right: bool) -> None:
        """Verdicts do not matter."""


class Eager:
    """A target that is free takes the guesses that are there.

    Where all guesses of the last check were right, it waits until a window is full, which the draft
    soon has; behind a correction it goes on with the empty window unless waiting pays. Where
    guesses are seldom right, the draft now and then rests for some passes, and stays at rest for a
    while if plain decoding is faster: beside the draft, passes may take longer.

    Args:
        window: γ, most guesses in one check; None for as many as the draft writes beside one check,
            by the measured times.
        wait: s, how many guesses the target waits for behind a correction; None for the number that
            the measured times suggest.
    """

    meets = False

    def __init__(self, window: int | None = None, wait: int | None = None) -> None:
        self.longest = LONGEST_WINDOW if window is None else window
        self._fixed_window = window
        self._fixed_wait = wait
        self._passes: deque[float] = deque(maxlen=RECENT)
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._verdicts: deque[bool] = deque(maxlen=8 * RECENT)
        self._drafting = _Rates()
        self._resting = _Rates()
        self._rest_left = 0
        self._work_for = TRIAL_AFTER
        self._work_left = TRIAL_AFTER

    @property
    def rests(self) -> bool:
        """Whether the draft rests at the moment."""
        return self._rest_left > 0

    @property
    def ahead(self) -> int:
        """The guesses that are being checked, the one in place of the bonus token, and the next
        window."""
        return 2 * self.window + 1

    @property
    def window(self) -> int:
        """γ at the moment."""
        if self._fixed_window is not None:
            return self._fixed_window
        if self.ratio is None:
            return FIRST_WINDOW
        return best_window(self.ratio, self.rate, self.longest)

    @property
    def ratio(self) -> float | None:
        """c, seconds of a pass of the target over seconds of a guess of the draft; None before both
        were measured."""
        if not self._passes or not self._steps:
            return None
        return median(self._passes) / self.step_seconds

    def guesses_to_wait_for(self, is_new: bool) -> int:
        """s behind a correction, else γ."""
        if self.rests:
            return 0
        if not is_new:
            is_soon_full = self.ratio is not None and self.ratio >= WORTH_FILLING
            return self.window if is_soon_full else 0
        if self._fixed_wait is not None:
            return min(self._fixed_wait, self.window)
        return 0 if self.ratio is None else best_wait(self.rate, self.ratio, self.window)

    @property
    def step_seconds(self) -> float:
        """Median of recent guesses."""
        return median(self._steps) if self._steps else 0.0

    @property
    def rate(self) -> float:
        """β, the share of recent guesses that were right; 0.5 before there are any."""
        return (sum(self._verdicts) + 1) / (len(self._verdicts) + 2)

    def limit(self, known: int, written: int) -> int:
        """As far ahead of the answer as always; a draft that rests writes nothing."""
        return known if self.rests else known + self.ahead

    def passed(self, seconds: float, waited: float, tokens: float) -> None:
        """Count time and tokens, and decide whether the draft rests."""
        if self.rests:
            self._resting.add(seconds + waited, tokens)
            self._rest_left -= 1
            if not self._rest_left:
                self._end_rest()
            return
        self._passes.append(seconds)
        self._drafting.add(seconds + waited, tokens)
        self._work_left -= 1
        if self._work_left <= 0:
            self._work_left = self._work_for
            if self._drafting.tokens_a_pass < SELDOM_RIGHT:
                self._resting = _Rates()
                self._rest_left = TRIAL
            else:
                self._drafting = _Rates()

    def _end_rest(self) -> None:
        """After a trial, rest on if plain decoding is faster; after a long rest, draft again."""
        is_trial = self._resting.passes <= TRIAL
        if is_trial and self._resting.tokens_a_second > self._drafting.tokens_a_second:
            self._rest_left = REST
            self._work_for = TRIAL_AFTER
            return
        if is_trial:
            self._work_for = min(2 * self._work_for, REST)
        self._drafting = _Rates()
        self._work_left = self._work_for

    def guessed(self, seconds: float) -> None:
        """Count the time."""
        self._steps.append(max(seconds, 1e-9))

    def judged(self, is_right: bool) -> None:
        """Count the verdict."""
        self._verdicts.append(is_right)


def best_window(ratio: float, rate: float, longest: int) -> int:
    """The window that the draft fills beside one check of the target.

    Window and bonus token take the c guesses of one pass, so it is c - 1; but a long window is no
    longer than is likely to be right as a whole (`benchmarks/results/parallel_rule.md`).

    Args:
        ratio: c, seconds of a pass of the target over seconds of a guess of the draft.
        rate: β, the probability that a guess is right.
        longest: the largest window.
    """
    certainty = -log(min(max(rate, 0.01), 0.999))
    reach = max(LONG, int(-log(WHOLE) / certainty))
    return max(1, min(longest, reach, round(ratio) - 1))


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

    longest = min(LONGEST_WAIT, window)
    waits = [wait for wait in range(longest + 1) if rate**wait >= LIKELY]
    return min(waits, key=passes)
