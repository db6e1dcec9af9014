"""Random calls give the tokens of stock `generate`; see `fuzzing` for what a case holds.

`make test` runs the same examples every time, `make fuzz` thousands of fresh ones. A failure prints
the smallest case that still fails, as the code that makes it.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest
from fuzzing import (
    MADE_NAMES,
    ROTARY_NAMES,
    Case,
    Visits,
    check_greedy,
    check_jobs,
    check_sampled,
    check_visits,
    check_wild,
    greedy_cases,
    jobs,
    sampled_cases,
    sessions,
    wild_cases,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlens.methods.base import METHODS

pytestmark = pytest.mark.slow


def share(part: float) -> settings:
    """The profile with a part of its examples."""
    default = "fresh" if "DRAFTLENS_FUZZ_EXAMPLES" in os.environ else "fixed"
    profile = settings.get_profile(os.environ.get("DRAFTLENS_FUZZ_PROFILE", default))
    return settings(profile, max_examples=max(1, round(profile.max_examples * part)))


@share(0.45)
@given(greedy_cases())
def test_greedy_answers_are_those_of_stock_generate(case: Case) -> None:
    """Whatever is drafted, wherever the answer ends, by every entry point."""
    check_greedy(case)


@share(0.15)
@given(sampled_cases())
def test_draws_depend_on_seeds_alone(case: Case) -> None:
    """Neither on the draft nor on the other rows."""
    check_sampled(case)


@share(0.1)
@given(sessions())
def test_rows_that_join_and_leave(case: Visits) -> None:
    """Each row has the tokens that it has in a call of its own."""
    check_visits(case)


@share(0.08)
@given(jobs())
def test_requests_of_a_scheduler(case: Visits) -> None:
    """Each has the tokens that it has in a call of its own."""
    check_jobs(case)


@share(0.1)
@given(greedy_cases(MADE_NAMES))
def test_greedy_answers_of_other_layers(case: Case) -> None:
    """Sliding windows, states, and prompts that attend both ways."""
    check_greedy(case)


@share(0.05)
@given(sampled_cases(MADE_NAMES))
def test_draws_of_other_layers(case: Case) -> None:
    check_sampled(case)


@share(0.05)
@given(sessions(MADE_NAMES))
def test_rows_of_other_layers_that_join_and_leave(case: Visits) -> None:
    check_visits(case)


@share(0.02)
@given(jobs(MADE_NAMES))
def test_scheduled_requests_of_other_layers(case: Visits) -> None:
    check_jobs(case)


def by_plain_decoding(case: Visits) -> Visits:
    """The same without a draft, which may exceed the limit of rotary frequencies."""
    return replace(case, method=(("method", "plain"),), draft=None)


@share(0.1)
@given(greedy_cases(ROTARY_NAMES))
def test_rotary_greedy_answers(case: Case) -> None:
    check_greedy(case)


@share(0.1)
@given(sampled_cases(ROTARY_NAMES))
def test_rotary_draws(case: Case) -> None:
    check_sampled(case)


@share(0.2)
@given(st.one_of(sessions(ROTARY_NAMES), sessions(ROTARY_NAMES).map(by_plain_decoding)))
def test_rotary_rows_that_join_and_leave(case: Visits) -> None:
    check_visits(case)


@share(0.1)
@given(jobs(ROTARY_NAMES))
def test_rotary_requests_of_a_scheduler(case: Visits) -> None:
    check_jobs(case)


@pytest.mark.parametrize("method", list(METHODS))
def test_options_in_any_combination_are_exact_or_refused(method: str) -> None:
    """No combination has another answer, and none raises what is no error of draftlens."""
    seen = Counter[str]()

    @share(0.1 / len(list(METHODS)))
    @given(wild_cases(method))
    def check(case: Case) -> None:
        check_wild(case, seen)

    check()
    assert seen["answered"] > 0
