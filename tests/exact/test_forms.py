"""Answers of a form: the tokens of stock `generate` with a logits processor of the same form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from families import FAMILIES, inputs, tokenizer
from forming import FormText, forms, has_form
from fuzzing import (
    Case,
    Options,
    Visits,
    check_greedy,
    check_jobs,
    check_sampled,
    check_visits,
    expected_of,
    greedy_cases,
    jobs,
    sampled_cases,
    sessions,
)
from hypothesis import event, given
from hypothesis import strategies as st
from stock import target
from test_fuzz import share

import draftlens
from draftlens.core.errors import ConfigError
from draftlens.core.forms import Form
from draftlens.drafting.adaptive.controller import TreeController
from draftlens.methods.lookup.drafter import LookupDrafter
from draftlens.methods.mixed.drafter import MixedDrafter

pytestmark = pytest.mark.slow
EOS = tokenizer().eos_token_id


def of_form(options: Options, form: FormText) -> Options:
    """The options with a form, and without what would forbid all that it allows."""
    return replace(options, form=form, suppressed=(), bad_words=(), min_new_tokens=None, nones=())


def with_forms(visits: Visits, drawn: list[FormText | None]) -> Visits:
    """Requests of which some have a form."""
    formed = [
        visit if form is None else replace(visit, options=of_form(visit.options, form))
        for visit, form in zip(visits.visits, drawn * len(visits.visits), strict=False)
    ]
    return replace(visits, visits=tuple(formed))


some_forms = st.lists(st.one_of(st.none(), forms), min_size=2, max_size=4)


@share(0.15)
@given(greedy_cases(), forms)
def test_greedy_answers_are_those_of_stock_generate(case: Case, form: FormText) -> None:
    """Those that end by themselves have the form."""
    case = replace(case, options=of_form(case.options, form))
    check_greedy(case)
    if case.options.eos or case.options.stop or case.options.criterion:
        return
    for tokens in expected_of(case).rows:
        if tokens[-1] == EOS:
            event("an answer has its form")
            assert has_form(form, tokens[:-1])


@share(0.05)
@given(sampled_cases(), forms)
def test_draws_depend_on_seeds_alone(case: Case, form: FormText) -> None:
    check_sampled(replace(case, options=of_form(case.options, form)))


@share(0.04)
@given(sessions(), some_forms)
def test_rows_that_join_and_leave(case: Visits, drawn: list[FormText | None]) -> None:
    check_visits(with_forms(case, drawn))


@share(0.04)
@given(jobs(), some_forms)
def test_requests_of_a_scheduler(case: Visits, drawn: list[FormText | None]) -> None:
    check_jobs(with_forms(case, drawn))


def answered(form: Any, method: Any, **options: Any) -> draftlens.Result:
    """An answer of up to 20 tokens about two rows, with a draft that agrees in part."""
    family = FAMILIES[0]
    return draftlens.generate(
        target(family),
        inputs(family, "image", (0, 1)),
        draft=options.pop("draft", None),
        method=method,
        form=form,
        tokenizer=tokenizer(),
        eos_token_id=EOS,
        max_new_tokens=20,
        **options,
    )


def test_a_text_without_alternative_takes_few_passes() -> None:
    """Ten digits, no two of which are one token, and the end: the prefill has the first."""
    digits = [tokenizer().convert_tokens_to_ids(digit) for digit in "0123456789"]
    method = {"method": "lookup", "num_speculative_tokens": 4}
    result = answered(Form.regex("0123456789"), method)
    assert result.tokens == [[*digits, EOS]] * 2
    assert result.stats.passes == 2 * 2
    assert result.stats.drafted == result.stats.accepted == 2 * 8
    assert answered(Form.regex("0123456789"), "plain").stats.passes == 2 * 10


def test_forced_tokens_follow_those_of_a_model(
    monkeypatch: pytest.MonkeyPatch, steady_costs: None
) -> None:
    """A model drafts the choice, and what the form demands after it is verified with it."""
    runs: list[int] = []
    monkeypatch.setattr(
        LookupDrafter, "attribute", lambda self, found, accepted: runs.extend(accepted)
    )
    monkeypatch.setattr(MixedDrafter, "_copying_is_faster", lambda *_: False)
    monkeypatch.setattr(TreeController, "further", lambda self, chances: (len(chances[0]), 0.0))
    form = Form.regex("(1|2|3)((4|5|6)0123456|(7|8)987654)")
    result = answered(form, "mixed", draft=target(FAMILIES[0]))
    plain = answered(form, "plain")
    assert result.tokens == plain.tokens
    assert result.stats.passes < plain.stats.passes / 2
    assert sum(runs) > 0


def test_an_answer_of_a_form_needs_a_tokenizer_and_an_end() -> None:
    family = FAMILIES[0]
    given = inputs(family, "image", (0,))
    with pytest.raises(ConfigError, match="form needs the option tokenizer"):
        draftlens.generate(target(family), given, form={"type": "integer"})
    options: dict[str, Any] = {"tokenizer": tokenizer(), "max_new_tokens": 4}
    with pytest.raises(ConfigError, match="eos_token_id"):
        draftlens.generate(target(family), given, form={"type": "integer"}, **options)
