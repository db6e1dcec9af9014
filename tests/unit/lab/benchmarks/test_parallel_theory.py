"""The formulas of drafting and checking at once, against figures that were worked out by hand."""

from __future__ import annotations

import doctest

import pytest

from benchmarks.parallel_parts import paper, theory


def test_a_window_that_is_always_right_gives_all_its_tokens() -> None:
    assert theory.lockstep_tokens(1.0, 7) == 7
    assert theory.lockstep_tokens(1 - 1e-9, 7) == pytest.approx(7)
    assert theory.lockstep_tokens(0.0, 7) == 1


def test_lockstep_tokens_are_those_of_the_chain_of_two_states() -> None:
    """Power iteration on the two modes of Algorithm 1."""
    acceptance, window = 0.8, 4
    pre, post = 1.0, 0.0
    for _ in range(500):
        on = pre * acceptance + post * acceptance**window
        pre, post = 1 - on, on
    tokens = pre + post * theory.chain_tokens(acceptance, window - 1)
    assert theory.lockstep_tokens(acceptance, window) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("name", "speedup"),
    [
        ("OV 0.5B & 7B", 2.28),
        ("OV 7B & 72B", 3.51),
        ("Qwen 7B & 32B", 2.35),
        ("OV 7B & itself", 1.54),
        ("Qwen 7B & itself", 1.46),
    ],
)
def test_lockstep_speedups_of_the_five_pairs(name: str, speedup: float) -> None:
    pair = paper.PAIRS[name]
    row = pair.rows["ParallelVLM"]
    acceptance = theory.acceptance_of_run(row.length)
    found = theory.lockstep_speedup(acceptance, pair.window, pair.target / pair.draft[0.9])
    assert found == pytest.approx(speedup, abs=0.006)
    assert found == pytest.approx(row.mean, rel=0.085)


@pytest.mark.parametrize(("ratio", "gain"), [(5, 1.29), (7, 1.24), (9, 1.19), (20, 0.99)])
def test_gains_over_the_best_serial_chain(ratio: int, gain: float) -> None:
    assert theory.gain_over_serial(0.87, ratio, ratio) == pytest.approx(gain, abs=0.006)


def test_the_two_readings_of_the_acceptance_rate_in_table_7() -> None:
    """Equation 7 needs emitted / (γ · rounds), Theorem 6 the chance of a single draft token."""
    pair = paper.PAIRS["OV 7B & 72B"]
    ratio = pair.target / pair.draft[0.9]
    for column in paper.TABLE_7:
        speedup = theory.equation_7(column.rate, ratio)
        assert speedup == pytest.approx(column.speedup, rel=0.08)
    assert theory.theorem_6(paper.TABLE_7[0].rate, 9) == pytest.approx(0.35, abs=0.003)


def test_theorems_2_and_3_are_4_and_5_with_all_accepted() -> None:
    assert theory.theorem_2(5, 9) == theory.theorem_4(1.0, 5, 9)
    assert theory.theorem_3(5, 9) == theory.theorem_5(1.0, 5, 9)
    assert theory.theorem_6(1.0, 9) == pytest.approx(theory.theorem_6(1 - 1e-9, 9))
    assert theory.theorem_3_gain(9) == theory.theorem_3(9, 9) / theory.theorem_2(9, 9)


def test_no_wait_is_the_papers_pre_verify() -> None:
    """At γ = c without a wait, tokens per T_p are R."""
    assert theory.waiting_tokens(0.87, 9, 9, 0) == pytest.approx(theory.lockstep_tokens(0.87, 9))
    assert theory.waiting_tokens(1.0, 9, 9, 4) == 9
    best = theory.best_wait(0.87, 9, 9)
    assert best > 0
    assert theory.waiting_tokens(0.87, 9, 9, best) > theory.waiting_tokens(0.87, 9, 9, 0)


def test_a_wait_for_a_whole_window_with_a_draft_that_takes_no_time_is_serial() -> None:
    tokens = theory.waiting_tokens(0.7, 6, 1e12, 5)
    assert tokens == pytest.approx(theory.chain_tokens(0.7, 5))


def test_the_acceptance_behind_a_number_of_tokens() -> None:
    tokens = theory.chain_tokens(0.8, 5)
    assert theory.acceptance_of_chain(tokens, 5) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="1 to 6 tokens"):
        theory.acceptance_of_chain(6.5, 5)


def test_nothing_is_gained_on_a_saturated_device() -> None:
    """Both lanes take the whole device: a round takes as long as one after the other."""
    assert theory.round_bound(1.0, 0.2, 5, 1.0, 1.0) == 2.0
    assert theory.round_bound(1.0, 0.2, 5, 0.5, 0.3) == 1.0
    assert theory.round_bound(1.0, 0.4, 5, 0.5, 0.3) == 2.0


def test_the_fastest_chain_ends_before_a_step_of_the_curve() -> None:
    def stairs(width: int) -> float:
        return 1.0 if width <= 4 else 0.5 * width

    assert theory.best_serial(stairs, 0.02, 0.9) == 3
    assert theory.best_serial(lambda _: 1.0, 0.5, 0.0) == 0


def flat(width: int) -> float:
    """A target whose forwards cost the same at all widths."""
    return 0.420


def test_a_pace_for_the_papers_largest_pair() -> None:
    pace = theory.best_pace(flat, 0.0466, 0.872)
    assert pace.schedule == "parallel"
    assert pace.cap == 8
    assert 1 <= pace.wait <= 4
    assert pace.ahead == 17
    assert pace.seconds == pace.parallel_seconds < pace.serial_seconds < pace.plain_seconds


def test_a_window_ends_before_a_step_of_the_targets_curve() -> None:
    def stairs(width: int) -> float:
        return 1.0 if width <= 4 else 0.5 * width

    assert theory.best_pace(stairs, 0.05, 0.9).cap == 3


def test_where_parallel_does_not_pay() -> None:
    """A useless draft; one so fast that a chain hides nothing; lanes that share one device."""
    useless = theory.best_pace(flat, 0.05, 0.0)
    assert (useless.schedule, useless.cap) == ("plain", 0)
    fast = theory.best_pace(flat, 0.001, 0.7)
    assert fast.schedule == "serial"
    assert fast.cap > 3
    shared = theory.best_pace(flat, 0.0466, 0.872, target_slowdown=2.0, draft_slowdown=2.0)
    assert shared.schedule == "serial"


@pytest.mark.parametrize("draft", [0.02, 0.0466, 0.1, 0.25, 0.4])
def test_a_larger_cap_than_the_draft_can_fill_is_never_chosen(draft: float) -> None:
    pace = theory.best_pace(flat, draft, 0.9, margin=0.0)
    assert pace.cap <= max(flat(1) / draft, 1)


@pytest.mark.parametrize(
    ("draft", "acceptance", "message"),
    [(0.0, 0.5, "positive"), (0.1, 1.5, "probability")],
)
def test_values_that_make_no_sense(draft: float, acceptance: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.best_pace(flat, draft, acceptance)


def test_table_1_is_copied_rightly() -> None:
    """The printed means are those of the five datasets, rounded; OnSD of the self pairs too."""
    for pair in paper.PAIRS.values():
        for row in pair.rows.values():
            mean = sum(row.speedups) / len(row.speedups)
            assert mean == pytest.approx(row.mean, abs=0.0101)


def test_table_6_adds_up() -> None:
    for column in paper.TABLE_6.values():
        total = column.draft_prefill + column.target_prefill + column.decode
        assert total == pytest.approx(column.total, abs=0.02)
        speed = paper.OUTPUT_TOKENS / column.decode
        assert speed == pytest.approx(column.tokens_per_second, abs=0.006)


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(theory).failed == 0
    assert doctest.testmod(theory).attempted > 0


def test_a_wait_is_only_for_tokens_that_are_likely() -> None:
    """After a correction a miss is likelier than the mean says."""
    assert theory.best_pace(flat, 0.0466, 0.6, margin=0.0).wait == 0
    assert theory.best_pace(flat, 0.0466, 0.92).wait > 1


def test_a_draft_as_slow_as_the_target_is_not_waited_for() -> None:
    """A filled window of one token then costs a whole pass."""
    cap, wait, fill = theory.best_window(flat, flat(1), 0.7, fills=(False, True))
    assert (wait, fill) == (0, 0)
    assert theory.simple_window(1.0, 0.7) == (1, 0, 0)
    unfilled = theory.parallel_seconds(flat, flat(1), 0.7, cap, 0)
    filled = theory.parallel_seconds(flat, flat(1), 0.7, cap, 0, cap)
    assert unfilled < 0.95 * filled


@pytest.mark.parametrize("ratio", [0.2, 1.0, 1.6, 3.0, 9.0, 20.0, 100.0])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_simple_windows_can_be_played(ratio: float, acceptance: float) -> None:
    cap, wait, fill = theory.simple_window(ratio, acceptance)
    assert 1 <= cap <= 16
    assert fill in (0, cap)
    assert 0 <= wait <= cap
    assert acceptance**wait >= theory.LIKELY


def test_a_simple_window_grows_with_the_draft_and_its_acceptance() -> None:
    caps = [theory.simple_window(ratio, 0.95)[0] for ratio in (1.0, 3.0, 9.0, 20.0)]
    assert caps == [1, 2, 8, 16]
    assert theory.simple_window(20.0, 0.7)[0] == theory.SAFE_WINDOW


def test_simple_windows_refuse_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="positive"):
        theory.simple_window(0.0, 0.5)
    with pytest.raises(ValueError, match="probability"):
        theory.simple_window(2.0, -0.1)
