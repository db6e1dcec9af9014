"""Random calls of targets with rounded weights give the tokens of their own plain decoding, one row
alone, near-ties included where activations are rounded; `fuzzing` says what a case holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import fuzzing
import pytest
import torch
from families import Family
from fuzzing import (
    ALL,
    Case,
    Expected,
    Prompts,
    Visits,
    greedy_cases,
    jobs,
    sampled_cases,
    sessions,
)
from hypothesis import event, given
from hypothesis import strategies as st
from test_fuzz import share
from test_rounded_targets import pytestmark as integer_products

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import Passes
from draftlens.passes import attach
from draftlens.passes.quantization import encoded_alone

pytestmark = [pytest.mark.slow, integer_products]

ROUNDED = ("int8", "int4", "int8-weights", "int4-weights")
AMONG_ROWS = {
    "as_length": False,
    "criterion": None,
    "repetition_penalty": None,
    "no_repeat_ngram_size": None,
}
"""Options that depend on the other rows of a batch, or on its padding."""

_target = fuzzing.target
_init = Backbone.__init__
_passes: dict[int, Passes] = {}


@cache
def rounded_target(family: Family, quantization: str) -> Any:
    """A copy of the family's model, of which every `Backbone` has rounded passes."""
    model = copy.deepcopy(_target(family))
    backbone = Backbone.of(model)
    attach([backbone], "openvino", quantization=quantization)
    _passes[id(model)] = backbone.passes
    return model


def _with_passes(backbone: Backbone, model: Any) -> None:
    _init(backbone, model)
    if id(model) in _passes:
        backbone.passes = _passes[id(model)]
        backbone.encode_pixels = encoded_alone


@contextmanager
def rounded(quantization: str) -> Iterator[None]:
    """Let targets of cases be rounded, and their answers alone be what is expected."""
    is_exact = not quantization.endswith("weights")
    with ExitStack() as stack:
        for name, value in {
            "target": lambda family: rounded_target(family, quantization),
            "attach_static": lambda *_, **__: None,
            "expected_of": plain_answer,
            "draft_of": fuzzing.draft_of.__wrapped__,  # type: ignore[attr-defined]
            "drawn": fuzzing.drawn.__wrapped__,
            **({"NEAR_TIE": -1.0} if is_exact else {}),
        }.items():
            stack.enter_context(patch.object(fuzzing, name, value))
        # Log probabilities are compared with those of stock `generate`, which is not rounded.
        stack.enter_context(patch.object(fuzzing.Visit, "top_logprobs", None))
        stack.enter_context(patch.object(Backbone, "__init__", _with_passes))
        yield


def plain_answer(case: Case) -> Expected:
    """What plain decoding answers to a case, each row alone where rows do not depend on others."""
    plain = case.plain
    whole = fuzzing.drawn(plain)
    if plain.options == replace(plain.options, **AMONG_ROWS):
        for number, row in enumerate(case.prompts.rows):
            seeds = None if plain.seeds is None else plain.seeds[number : number + 1]
            alone = replace(plain, prompts=replace(case.prompts, rows=(row,)), seeds=seeds)
            assert fuzzing.drawn(alone).tokens == [whole.tokens[number]]
    sequences = torch.tensor(fuzzing.rebuilt(case, whole.tokens))
    return Expected(sequences, whole.tokens, torch.tensor(whole.gaps).T)


def check(quantization: str, case: Any, run: Callable[[Any], None]) -> None:
    """The case has the tokens of plain decoding, or only modules can compute it."""
    with rounded(quantization):
        try:
            run(replace(case, prefill=None))  # other prefills are refused
        except UnsupportedModelError as error:
            if "round nothing" not in str(error):
                raise
            event("refused")
        else:
            event("answered")


def check_call(case: Case) -> None:
    """The tokens of a call."""
    if fuzzing.must_refuse(case) or has_features_between(case.prompts):
        return
    result = case.run()
    stock = plain_answer(case)
    assert result.tokens == stock.rows or fuzzing.is_near_tie(result.tokens, stock)
    assert any("weights" in each for each in result.approximate)


kinds = st.sampled_from(ROUNDED)


@share(0.02)
@given(kinds, greedy_cases(ALL))
def test_greedy_answers_are_those_of_plain_decoding(quantization: str, case: Case) -> None:
    entry = "generate" if case.entry == "custom_generate" else case.entry
    check(quantization, replace(case, entry=entry), check_call)


@share(0.01)
@given(kinds, sampled_cases(ALL))
def test_draws_are_those_of_plain_decoding(quantization: str, case: Case) -> None:
    if ("sampling_rule", "rejection") in (case.method or ()):
        return
    entry = "generate" if case.entry == "custom_generate" else case.entry
    check(quantization, replace(case, entry=entry), check_call)


@share(0.01)
@given(kinds, sessions(ALL))
def test_rows_that_join_have_the_tokens_of_plain_decoding(quantization: str, case: Visits) -> None:
    check(quantization, of_rows_alone(case), fuzzing.check_visits)


@share(0.01)
@given(kinds, jobs(ALL))
def test_jobs_have_the_tokens_of_plain_decoding(quantization: str, case: Visits) -> None:
    """A scheduler is what a server runs."""
    check(quantization, of_rows_alone(case), fuzzing.check_jobs)


def of_rows_alone(case: Visits) -> Visits:
    """Without requests that only modules can read, which end a session."""
    visits = [visit for visit in case.visits if not has_features_between(visit.prompts)]
    return replace(case, visits=tuple(visits))


def has_features_between(prompts: Prompts) -> bool:
    """Whether pictures have features between layers."""
    return prompts.family == "qwen3_vl" and prompts.kind != "text"
