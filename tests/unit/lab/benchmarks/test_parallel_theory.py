"""The formulas of drafting and checking at once, against figures that were worked out by hand."""

from __future__ import annotations

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


def test_the_acceptance_behind_a_number_of_tokens() -> None:
    tokens = theory.chain_tokens(0.8, 5)
    assert theory.acceptance_of_chain(tokens, 5) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="1 to 6 tokens"):
        theory.acceptance_of_chain(6.5, 5)


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
