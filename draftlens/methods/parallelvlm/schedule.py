"""How far the draft runs ahead: the lock-step of ParallelVLM (Algorithm 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

LONGEST_WINDOW = 16  # Largest γ that is chosen by measured times.
FIRST_WINDOW = 4  # γ before anything is measured.
RECENT = 32  # Rounds, and steps of the draft, for medians; eight times as many verdicts.
TRIAL_AFTER = 12  # Rounds after which plain decoding may be tried; doubles after each trial.
TRIAL = 3  # Rounds of a trial.

# Gain over one token per pass beside the draft below which plain decoding is tried. Without the
# draft a pass takes less time, but not by this factor.
DOUBTFUL = 1.5


@dataclass(frozen=True)
class Round:
    """One pass of the target and its result."""

    pass_seconds: float
    seconds: float  # of the whole round, with the wait for the draft
    width: int  # tokens of a row in the pass; 1 for an empty window
    tokens: float  # emitted, mean of the running rows


class Schedule:
    """In every round the draft writes γ tokens while the target checks those of the round before;
    then each waits for the other.

    With a given γ, passes and proposals do not depend on time. Otherwise γ follows the measured
    times, and the draft stops where plain decoding is measured to be faster, until rows join.
    """

    def __init__(self, window: int | None = None) -> None:
        self.is_fixed = window is not None
        self.window = FIRST_WINDOW if window is None else window  # γ of the next round
        self.longest = LONGEST_WINDOW if window is None else window  # largest γ that is possible
        # false in a trial of plain decoding, and once the draft has been stopped
        self.drafts = True
        self._rounds: deque[Round] = deque(maxlen=RECENT)
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._verdicts: deque[bool] = deque(maxlen=8 * RECENT)
        self._plain_rounds: list[Round] = []
        self._period = TRIAL_AFTER
        self._rounds_left = TRIAL_AFTER

    @property
    def rate(self) -> float:
        """β, the share of recent draft tokens that were accepted; 0.5 before there are any."""
        return (sum(self._verdicts) + 1) / (len(self._verdicts) + 2)

    def drafted(self, seconds: float) -> None:
        """Count the seconds of a draft step, T_q."""
        self._steps.append(seconds)

    def judged(self, accepted: bool) -> None:
        self._verdicts.append(accepted)

    def resume(self) -> None:
        """Let a draft that has been stopped draft again: rows that join may suit it better."""
        if not self.drafts and len(self._plain_rounds) >= TRIAL:
            self.drafts = True
            self._rounds.clear()
            self._period = self._rounds_left = TRIAL_AFTER

    def finish(self, finished: Round) -> None:
        """Count a round, and choose how the next one is drafted."""
        if self.is_fixed:
            return
        if not self.drafts:
            self._plain_rounds.append(finished)
            if len(self._plain_rounds) == TRIAL:
                self._end_trial()
            return
        self._rounds.append(finished)
        if self._steps:
            self.window = self._best_window()
        self._rounds_left -= 1
        if self._rounds_left <= 0:
            self._rounds_left = self._period
            self.drafts = _speed(self._rounds) * self._pass_seconds(1) >= DOUBTFUL
            self._plain_rounds.clear()

    def _end_trial(self) -> None:
        self.drafts = _speed(self._rounds) >= _speed(self._plain_rounds)
        self._period *= 2
        self._rounds_left = self._period

    def _best_window(self) -> int:
        """The γ that takes the fewest seconds a token.

        Between two rejections there is one empty window and, on average, β / (1 - β^γ) full ones. A
        round takes as long as the slower of pass and draft, so a token takes
        (1 - β)(max(T_p(1), γ·T_q) + max(T_p(γ), γ·T_q)·β / (1 - β^γ)) seconds.
        """
        rate = self.rate
        step = median(self._steps)
        single = self._pass_seconds(1)
        slope = self._slope(single)

        def seconds(window: int) -> float:
            drafting = window * step
            full = max(single + slope * (window - 1), drafting)
            return max(single, drafting) + full * rate / (1 - rate**window)

        return min(range(1, self.longest + 1), key=seconds)

    def _pass_seconds(self, width: int) -> float:
        """Median T_p of passes of this width, or of all passes if there was none."""
        times = [done.pass_seconds for done in self._rounds if done.width == width]
        return median(times or [done.pass_seconds for done in self._rounds])

    def _slope(self, single: float) -> float:
        """Seconds that each further token of a row adds to a pass."""
        wide = [done for done in self._rounds if done.width > 1]
        if not wide:
            return 0.0
        more = median(done.pass_seconds for done in wide) - single
        return max(0.0, more / median(done.width - 1 for done in wide))


def _speed(rounds: Iterable[Round]) -> float:
    """Tokens a second."""
    done = list(rounds)
    return sum(entry.tokens for entry in done) / max(sum(entry.seconds for entry in done), 1e-9)
