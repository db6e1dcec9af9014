"""Random calls give the tokens of stock `generate`; see `fuzzing` for what a case holds.

`make test` runs the same examples every time, `make fuzz` thousands of fresh ones. A failure prints
the smallest case that still fails, as the code that makes it.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from fuzzing import (
    Case,
    Visits,
    check_greedy,
    check_sampled,
    check_visits,
    check_wild,
    greedy_cases,
    sampled_cases,
    sessions,
    wild_cases,
)
from hypothesis import given, settings

from draftlens.methods.base import METHODS


def share(part: float) -> settings:
    """The profile with a part of its examples, but four at least: some are refused."""
    default = "fresh" if "DRAFTLENS_FUZZ_EXAMPLES" in os.environ else "fixed"
    profile = settings.get_profile(os.environ.get("DRAFTLENS_FUZZ_PROFILE", default))
    return settings(profile, max_examples=max(4, round(profile.max_examples * part)))


@share(0.55)
@given(greedy_cases())
def test_greedy_answers_are_those_of_stock_generate(case: Case) -> None:
    """Whatever is drafted, wherever the answer ends, by every entry point."""
    check_greedy(case)


@share(0.2)
@given(sampled_cases())
def test_draws_depend_on_seeds_alone(case: Case) -> None:
    """Neither on the draft nor on the other rows."""
    check_sampled(case)


@share(0.15)
@given(sessions())
def test_rows_that_join_and_leave(case: Visits) -> None:
    """Each row has the tokens that it has in a call of its own."""
    check_visits(case)


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
