"""Schedules in virtual time, against closed formulas and plays that were worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.parallel_parts import theory
from benchmarks.parallel_parts.virtual import (
    Costs,
    Figures,
    Schedule,
    drawn_text,
    figures,
    lockstep,
    serial,
)

TEXTS = 24
LENGTH = 512
TOLERANCE = 0.03
"""Sampling error of `TEXTS` texts, about three standard deviations."""


def costs(ratio: float) -> Costs:
    """A target forward takes a second."""
    return Costs(1.0, 1 / ratio, latency=0.0)


def play_all(acceptance: float, ratio: float, schedule: Schedule) -> Figures:
    texts = [drawn_text(LENGTH, acceptance, seed) for seed in range(TEXTS)]
    return figures(texts, costs(ratio), schedule)


@pytest.mark.parametrize(("acceptance", "window"), [(0.87, 9), (0.89, 3), (0.94, 2), (0.6, 4)])
def test_lockstep_emits_what_the_formula_says(acceptance: float, window: int) -> None:
    found = play_all(acceptance, window, lambda text: lockstep(text, costs(window), window))
    expected = theory.lockstep_tokens(acceptance, window)
    assert found.tokens_a_round == pytest.approx(expected, rel=TOLERANCE)
    assert found.speedup == pytest.approx(expected, rel=TOLERANCE)


def test_run_lengths_are_the_papers_accepted_length() -> None:
    found = play_all(0.87, 9, lambda text: lockstep(text, costs(9), 9))
    assert found.run_length == pytest.approx(0.87 / 0.13, rel=0.06)
    assert theory.acceptance_of_run(found.run_length) == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize(("acceptance", "gamma"), [(0.87, 7), (0.6, 3), (0.0, 2)])
def test_serial_takes_what_the_formula_says(acceptance: float, gamma: int) -> None:
    found = play_all(acceptance, 9, lambda text: serial(text, costs(9), gamma))
    expected = theory.chain_tokens(acceptance, gamma) / (gamma / 9 + 1)
    assert found.speedup == pytest.approx(expected, rel=TOLERANCE)


def test_serial_without_draft_tokens_is_plain() -> None:
    assert serial(drawn_text(50, 0.5, 0), costs(3), 0).seconds == 49


def test_a_play_by_hand() -> None:
    """γ = c = 2; positions 1, 2, 4 are right, position 3 is wrong.

    Round 1 forwards the last token alone and confirms position 1. Round 2 judges position 2 and
    decides position 3, whose draft token is wrong. Round 3 is pre-verify and confirms position 4.
    """
    play = lockstep([True, True, True, False, True], costs(2), 2)
    assert (play.rounds, play.emitted, play.runs) == (3, 4, (2,))
    assert play.seconds == play.target == play.draft == pytest.approx(3)


def test_a_round_ends_with_the_slower_one() -> None:
    play = lockstep([True, False], Costs(1.0, 0.6, latency=0.1), 2)
    assert play.seconds == pytest.approx(1.3)
    assert (play.target, play.draft) == (1.0, 1.2)


def test_a_window_of_the_prefill_saves_the_first_pre_verify() -> None:
    alone = lockstep([True] * 20, costs(4), 4)
    ready = lockstep([True] * 20, costs(4), 4, starts_ready=True)
    assert (alone.rounds, ready.rounds) == (6, 5)
