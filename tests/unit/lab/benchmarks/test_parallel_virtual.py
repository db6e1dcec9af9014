"""Schedules in virtual time, against closed formulas and plays that were worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from benchmarks.parallel_parts import theory
from benchmarks.parallel_parts.virtual import (
    DRAFT,
    TARGET,
    Costs,
    Eager,
    Play,
    clustered_text,
    drawn_text,
    eager,
    lockstep,
    plain,
    serial,
    text_of_ranks,
)

TEXTS = 24
LENGTH = 512
TOLERANCE = 0.03
"""Sampling error of `TEXTS` texts, about three standard deviations."""


def costs(ratio: float, latency: float = 0.0) -> Costs:
    """A target forward takes a second at all widths."""
    return Costs(lambda _: 1.0, lambda _: 1 / ratio, latency=latency)


def play_all(acceptance: float, schedule: Callable[[list], Play]) -> list[Play]:
    return [schedule(drawn_text(LENGTH, acceptance, seed)) for seed in range(TEXTS)]


def tokens_a_round(plays: list[Play]) -> float:
    return sum(play.emitted for play in plays) / sum(play.rounds for play in plays)


def seconds_a_token(plays: list[Play]) -> float:
    return sum(play.seconds for play in plays) / sum(play.emitted for play in plays)


@pytest.mark.parametrize(("acceptance", "window"), [(0.87, 9), (0.89, 3), (0.94, 2), (0.6, 4)])
def test_lockstep_emits_what_the_formula_says(acceptance: float, window: int) -> None:
    plays = play_all(acceptance, lambda text: lockstep(text, costs(window), window))
    expected = theory.lockstep_tokens(acceptance, window)
    assert tokens_a_round(plays) == pytest.approx(expected, rel=TOLERANCE)
    assert seconds_a_token(plays) == pytest.approx(1 / expected, rel=TOLERANCE)


def test_run_lengths_are_the_papers_accepted_length() -> None:
    plays = play_all(0.87, lambda text: lockstep(text, costs(9), 9))
    mean = sum(play.run_length for play in plays) / len(plays)
    assert mean == pytest.approx(0.87 / 0.13, rel=0.06)
    assert theory.acceptance_of_run(mean) == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize(("acceptance", "gamma"), [(0.87, 7), (0.6, 3), (0.0, 2)])
def test_serial_takes_what_the_formula_says(acceptance: float, gamma: int) -> None:
    plays = play_all(acceptance, lambda text: serial(text, costs(9), gamma))
    expected = theory.serial_seconds(lambda _: 1.0, 1 / 9, acceptance, gamma)
    assert seconds_a_token(plays) == pytest.approx(expected, rel=TOLERANCE)


def test_serial_without_draft_tokens_is_plain() -> None:
    text = drawn_text(50, 0.5, 0)
    assert serial(text, costs(3), 0).seconds == plain(text, costs(3)).seconds == 49


@pytest.mark.parametrize("wait", [0, 2, 5])
def test_eager_with_a_draft_that_takes_no_time(wait: int) -> None:
    fast = Costs(lambda _: 1.0, lambda _: 1e-9, latency=0.0)
    plays = play_all(0.8, lambda text: eager(text, fast, Eager(cap=5, wait=wait)))
    expected = theory.waiting_tokens(0.8, 6, 1e9, wait)
    assert 1 / seconds_a_token(plays) == pytest.approx(expected, rel=TOLERANCE)


def test_eager_without_a_draft_that_is_ever_right_is_plain() -> None:
    text = text_of_ranks([9] * 40)
    play = eager(text, costs(5), Eager(cap=4, ahead=9))
    assert play.seconds == pytest.approx(39)
    assert play.accepted == 0


def test_eager_is_as_fast_as_the_draft_if_all_is_right() -> None:
    text = text_of_ranks([0] * 400)
    play = eager(text, costs(4), Eager(cap=3, ahead=7))
    assert play.emitted / play.seconds == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize(("cap", "wait"), [(4, 0), (6, 2), (8, 2), (8, 4)])
def test_the_rule_predicts_eager(cap: int, wait: int) -> None:
    """The prediction of `best_pace` against the simulation, with messages that take time."""
    machine = costs(9, latency=0.001)
    options = Eager(cap, wait, theory.lead(cap))
    plays = play_all(0.87, lambda text: eager(text, machine, options))
    expected = theory.parallel_seconds(lambda _: 1.0, 1 / 9, 0.87, cap, wait, 0, 0.001)
    assert seconds_a_token(plays) == pytest.approx(expected, rel=0.04)


def test_a_play_by_hand() -> None:
    """γ = c = 2; positions 1, 2, 4 are right, position 3 is wrong.

    Round 1 forwards the last token alone and confirms position 1. Round 2 judges position 2 and
    decides position 3, whose draft token is wrong. Round 3 is pre-verify and confirms position 4.
    """
    text = text_of_ranks([0, 0, 0, 9, 0])
    play = lockstep(text, costs(2), 2)
    assert [event.emitted for event in play.events if event.lane == TARGET] == [1, 2, 1]
    assert play.seconds == pytest.approx(3)
    assert play.drafted == 6
    assert play.runs == (2,)
    assert play.idle[TARGET] == pytest.approx(0)


def test_a_window_of_the_prefill_saves_the_first_pre_verify() -> None:
    text = text_of_ranks([0] * 20)
    alone = lockstep(text, costs(4), 4)
    ready = lockstep(text, costs(4), 4, starts_ready=True)
    assert (alone.rounds, ready.rounds) == (6, 5)
    assert eager(text, costs(4), Eager(3, 0, 7), ready=4).seconds < alone.seconds


def test_a_second_choice_finds_its_continuation_ready() -> None:
    """Without the hedge the target forwards the token after the miss alone."""
    text = text_of_ranks([0, 0, 0, 1, 0, 0, 0])
    options = {"cap": 4, "ahead": 4}
    without = eager(text, costs(20), Eager(**options))
    hedged = eager(text, costs(20), Eager(**options, hedge=3))
    assert hedged.used_hedges == 1
    assert without.used_hedges == 0
    assert hedged.rounds < without.rounds


@pytest.mark.parametrize("hedge", [0, 2, 5])
@pytest.mark.parametrize("ratio", [0.5, 1.6, 9.0])
def test_every_schedule_writes_the_whole_answer(ratio: float, hedge: int) -> None:
    for seed in range(4):
        text = clustered_text(100, 0.7, 0.8, seed)
        for cap in (1, 3, 8):
            for wait in (0, 1):
                options = Eager(cap, wait, theory.lead(cap), hedge=hedge)
                play = eager(text, costs(ratio, 0.01), options)
                assert play.emitted == len(text) - 1
                checks = [event for event in play.events if event.lane == TARGET]
                assert sum(event.emitted for event in checks) == play.emitted
                assert len(checks) == play.rounds


@pytest.mark.parametrize("lane", [TARGET, DRAFT])
def test_a_lane_does_one_thing_at_a_time(lane: str) -> None:
    machine = Costs(lambda width: 1 + 0.1 * width, lambda _: 0.2, 1.3, 1.2, 0.01)
    play = eager(drawn_text(80, 0.8, 1), machine, Eager(5, 1, 11, hedge=3))
    events = [event for event in play.events if event.lane == lane]
    for before, after in pairwise(events):
        assert before.end <= after.start + 1e-9
    busy = sum(event.end - event.start for event in events)
    running = play.busy[lane]
    assert busy <= running + 1e-9


def test_lanes_slow_each_other_down() -> None:
    """Half of the target's forward runs beside a draft step and takes twice as long there."""
    machine = Costs(lambda _: 1.0, lambda _: 1.0, target_slowdown=2.0, latency=0.0)
    text = text_of_ranks([9, 9])
    # The step ends after one second; by then half of the forward is done.
    assert lockstep(text, machine, 1).seconds == pytest.approx(1.5)


def test_the_same_play_every_time() -> None:
    first = eager(drawn_text(200, 0.8, 5), costs(6), Eager(5, 1, 11, hedge=4))
    again = eager(drawn_text(200, 0.8, 5), costs(6), Eager(5, 1, 11, hedge=4))
    assert first == again


def test_a_wait_that_would_never_end() -> None:
    with pytest.raises(ValueError, match="cannot wait for 5 draft tokens"):
        Eager(cap=4, wait=5)
    with pytest.raises(ValueError, match="set hedge"):
        Eager(cap=4, width=2)


def test_misses_of_a_clustered_text() -> None:
    """As many as of an independent one, but closer together, so lock-step has longer runs."""
    acceptance = 0.87
    texts = [clustered_text(LENGTH, acceptance, 0.85, seed) for seed in range(TEXTS)]
    right = sum(token.rank == 0 for text in texts for token in text)
    assert right / (TEXTS * LENGTH) == pytest.approx(acceptance, abs=0.015)


@pytest.mark.parametrize(("ratio", "acceptance"), [(1.7, 0.94), (3.0, 0.87), (5.0, 0.81)])
def test_a_target_that_fills_its_windows_is_as_fast_as_lockstep(
    ratio: float, acceptance: float
) -> None:
    """A draft that is hardly faster than a window needs: taking what is there wastes forwards."""
    cap = round(ratio) - 1
    filled = Eager(cap, 0, theory.lead(cap), fill=cap)
    plays = play_all(acceptance, lambda text: eager(text, costs(ratio), filled))
    hasty = play_all(acceptance, lambda text: eager(text, costs(ratio), Eager(cap, 0, 2 * cap + 1)))
    steps = play_all(acceptance, lambda text: lockstep(text, costs(ratio), cap + 1))
    assert seconds_a_token(plays) <= seconds_a_token(hasty)
    assert seconds_a_token(plays) == pytest.approx(seconds_a_token(steps), rel=0.03)
    expected = theory.parallel_seconds(lambda _: 1.0, 1 / ratio, acceptance, cap, 0, cap)
    assert seconds_a_token(plays) == pytest.approx(expected, rel=0.06)
