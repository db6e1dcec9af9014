"""Several texts through one schedule: mean speeds, and the fastest of several settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from . import theory
from .virtual import Costs, Eager, Play, Text, drawn_text, eager, lockstep, plain, serial

Schedule = Callable[[Text], Play]

HEDGE = 8
"""Length of the continuation after a second choice."""


@dataclass(frozen=True)
class Figures:
    """Means over several texts.

    Args:
        speedup: over plain decoding of the same texts.
        tokens_a_round: emitted tokens by forwards of the target.
        run_length: right draft tokens between corrections.
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
    corrections = sum(len(play.runs) for play in plays)
    right = sum(sum(play.runs) for play in plays)
    idle = {lane: sum(play.idle[lane] for play in plays) / seconds for lane in ("target", "draft")}
    return Figures(
        emitted * costs.target(1) / seconds,
        emitted / sum(play.rounds for play in plays),
        right / max(corrections, 1),
        idle["target"],
        idle["draft"],
    )


def independent_texts(count: int, length: int, acceptance: float) -> list[Text]:
    """Texts whose draft tokens are right independently of each other."""
    return [drawn_text(length, acceptance, seed) for seed in range(count)]


def plain_figures(texts: Sequence[Text], costs: Costs) -> Figures:
    """Plain decoding."""
    return figures(texts, costs, lambda text: plain(text, costs))


def serial_figures(texts: Sequence[Text], costs: Costs, gamma: int) -> Figures:
    """A serial chain."""
    return figures(texts, costs, lambda text: serial(text, costs, gamma))


def lockstep_figures(texts: Sequence[Text], costs: Costs, window: int) -> Figures:
    """The paper's schedule."""
    return figures(texts, costs, lambda text: lockstep(text, costs, window))


def eager_figures(texts: Sequence[Text], costs: Costs, options: Eager) -> Figures:
    """A target that takes what is there."""
    return figures(texts, costs, lambda text: eager(text, costs, options))


def best_serial_figures(
    texts: Sequence[Text], costs: Costs, longest: int = 16
) -> tuple[int, Figures]:
    """The length of the fastest serial chain on these texts, and its figures."""
    found = {gamma: serial_figures(texts, costs, gamma) for gamma in range(1, longest + 1)}
    return _fastest(found)


def best_lockstep_figures(
    texts: Sequence[Text], costs: Costs, windows: Iterable[int]
) -> tuple[int, Figures]:
    """The fastest window of lock-step on these texts, and its figures."""
    found = {window: lockstep_figures(texts, costs, window) for window in windows}
    return _fastest(found)


def _fastest(found: dict[int, Figures]) -> tuple[int, Figures]:
    best = max(found, key=lambda key: found[key].speedup)
    return best, found[best]


def pace_of(costs: Costs, acceptance: float) -> theory.Pace:
    """What the rule chooses for these costs."""
    return theory.best_pace(
        costs.target,
        costs.draft(1),
        acceptance,
        target_slowdown=costs.target_slowdown,
        draft_slowdown=costs.draft_slowdown,
        latency=costs.latency,
    )


def parallel_options(costs: Costs, acceptance: float, hedge: int = 0) -> Eager:
    """The parallel pace that the rule predicts to be fastest, paying or not.

    With hedges the target takes what is there: it must not wait for draft tokens in the place of
    which the draft continues second choices.
    """
    cap, wait, fill = theory.best_window(
        costs.target,
        costs.draft(1),
        acceptance,
        target_slowdown=costs.target_slowdown,
        draft_slowdown=costs.draft_slowdown,
        latency=costs.latency,
    )
    return Eager(cap, wait, theory.lead(cap), 0 if hedge else fill, hedge)
