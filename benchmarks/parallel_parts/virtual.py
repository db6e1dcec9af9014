"""Schedules of target and draft in virtual time, without models.

A text says for each position of the answer whether the draft's token is right there, provided that
all tokens before it are. Forwards have fixed costs, so an answer of 512 tokens takes milliseconds
and all schedules answer the same text. The first token of the answer comes from the target's
prefill and takes no time here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Text = Sequence[bool]
Schedule = Callable[[Text], "Play"]

LATENCY = 50e-6
"""Seconds of a message between target and draft."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a target forward, of a draft step and of a message."""

    target: float
    draft: float
    latency: float = LATENCY


@dataclass
class Play:
    """What an answer took.

    Args:
        seconds: from the first token to the last.
        target, draft: seconds of work.
        rounds: forwards of the target.
        emitted: tokens after the first.
        runs: draft tokens that are right between two corrections; the last, unfinished run is left
            out.
    """

    seconds: float = 0.0
    target: float = 0.0
    draft: float = 0.0
    rounds: int = 0
    emitted: int = 0
    runs: tuple[int, ...] = ()
    _run: int = 0

    def check(self, emitted: int, is_corrected: bool) -> None:
        """Count the tokens of a target forward, and whether its last one corrects the draft."""
        self.rounds += 1
        self.emitted += emitted
        self._run += emitted
        if is_corrected:
            self.runs += (self._run - 1,)
            self._run = 0


@dataclass(frozen=True)
class Figures:
    """Means over several texts.

    Args:
        speedup: over plain decoding of the same texts.
        tokens_a_round: emitted tokens by forwards of the target.
        run_length: the paper's M, right draft tokens between two corrections.
        target_idle, draft_idle: shares of the time without work.
    """

    speedup: float
    tokens_a_round: float
    run_length: float
    target_idle: float
    draft_idle: float


def figures(texts: Sequence[Text], costs: Costs, schedule: Schedule) -> Figures:
    """Play all texts."""
    plays = [schedule(text) for text in texts]
    emitted = sum(play.emitted for play in plays)
    seconds = sum(play.seconds for play in plays)
    runs = [run for play in plays for run in play.runs]
    return Figures(
        emitted * costs.target / seconds,
        emitted / sum(play.rounds for play in plays),
        sum(runs) / max(len(runs), 1),
        1 - sum(play.target for play in plays) / seconds,
        1 - sum(play.draft for play in plays) / seconds,
    )


def serial(text: Text, costs: Costs, gamma: int) -> Play:
    """Draft a chain of `gamma` tokens, check it, draft the next; fewer where the answer ends."""
    play = Play()
    position = 1
    while position < len(text):
        depth = min(gamma, len(text) - position - 1)
        right = _right(text, position, depth)
        play.draft += depth * costs.draft
        play.target += costs.target
        play.check(right + 1, right < depth)
        position += right + 1
    play.seconds = play.draft + play.target
    return play


def lockstep(text: Text, costs: Costs, window: int, starts_ready: bool = False) -> Play:
    """The paper's Algorithm 1: rounds in which the draft writes γ tokens beside a check.

    The draft tokens of a round are one for the token that the running check itself decides, and
    γ - 1 after it. If all that the check judges and decides is as drafted, the next one judges
    these γ - 1 and the token after them (post-verify); otherwise it forwards the last token alone
    (pre-verify).

    Args:
        text: the answer.
        costs: of forwards.
        window: γ.
        starts_ready: whether the draft has written a window by the time of the first token
            (Section 4.2, startup tokens).
    """
    play = Play()
    position = 1
    has_window = starts_ready and text[0]
    while position < len(text):
        size = min(window - 1 if has_window else 0, len(text) - position - 1)
        right = _right(text, position, size + 1)
        emitted = min(right, size) + 1
        play.target += costs.target
        play.draft += window * costs.draft
        play.seconds += max(costs.target, window * costs.draft) + costs.latency
        play.check(emitted, right <= size)
        position += emitted
        has_window = right == size + 1
    return play


def _right(text: Text, position: int, count: int) -> int:
    """How many of the next `count` draft tokens, from the first on, are right."""
    for depth in range(count):
        if not text[position + depth]:
            return depth
    return count


def drawn_text(length: int, acceptance: float, seed: int) -> Text:
    """A text whose draft tokens are right independently of each other."""
    rng = random.Random(seed)
    return [rng.random() < acceptance for _ in range(length)]
