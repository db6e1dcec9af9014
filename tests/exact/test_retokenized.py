"""A draft with another tokenizer writes text, and the tokens are those of stock `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from retokenizing import KINDS, other_inputs, retokenized
from stock import LONG, NEW, reference, staggered, stock, target

import draftlens
from draftlens import IncompatiblePairError

some_families = pytest.mark.parametrize("name", ["llava_next", "qwen2_5_vl", "smolvlm"])
every_kind = pytest.mark.parametrize("kind", KINDS)
BY_NAME = {family.name: family for family in FAMILIES}
CHAIN: Mapping[str, Any] = {"method": "speculative", "num_speculative_tokens": 4}


def generate(family: Family, kind: str, given: Any = None, **options: Any) -> draftlens.Result:
    given = given or inputs(family, family.richest)
    call = {
        "draft": retokenized(family, kind, options.pop("noise", 0.02)),
        "draft_inputs": other_inputs(family, given),
        "method": CHAIN,
        "max_new_tokens": NEW,
    }
    return draftlens.generate(target(family), given, **{**call, **options})


@some_families
@every_kind
def test_a_ragged_batch(name: str, kind: str) -> None:
    family = BY_NAME[name]
    result = generate(family, kind)
    assert result.tokens == reference(family, family.richest)
    assert result.lossless
    assert result.stats.drafted > 0


@every_kind
def test_some_draft_tokens_are_accepted(kind: str) -> None:
    """On prompts of text the draft is the target but for its ids."""
    for family in FAMILIES[:3]:
        given = inputs(family, "text")
        result = generate(family, kind, given, noise=0.0)
        assert result.tokens == reference(family, "text")
        assert result.stats.accepted > (8 if kind == "shuffled" else 0)


@some_families
def test_rows_that_end_early_and_late(name: str) -> None:
    family = BY_NAME[name]
    given = inputs(family, family.richest)
    ends = staggered(reference(family, family.richest, LONG))
    expected = stock(target(family), given, max_new_tokens=LONG, eos_token_id=ends)
    assert generate(family, "shuffled", max_new_tokens=LONG, eos_token_id=ends).tokens == expected


@some_families
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_sampled_tokens_are_those_of_plain_decoding(name: str, rule: str) -> None:
    """Draft tokens have no probabilities, so both rules draw what plain decoding draws."""
    family = BY_NAME[name]
    options = {"do_sample": True, "top_k": 40, "repetition_penalty": 1.1, "seed": [1, 2, 3]}
    plain = generate(family, "shuffled", draft=None, method="plain", **options)
    chosen = {**CHAIN, "sampling_rule": rule}
    result = generate(family, "shuffled", method=chosen, **options)
    if rule == "coupled":
        assert result.tokens == plain.tokens
    assert generate(family, "shuffled", method=chosen, **options).tokens == result.tokens


@pytest.mark.parametrize(
    "method",
    [
        {"tree": "eagle"},
        {"schedule": "parallel", "num_speculative_tokens": 3},
        {"method": "specvlm", "draft": "model"},
        {"method": "tabed", "views": ["text"], "draft": "model"},
    ],
    ids=str,
)
def test_other_ways_to_draft_are_refused(method: Any) -> None:
    with pytest.raises(
        IncompatiblePairError, match=r"another tokenizer than the target|prunes visual tokens"
    ):
        generate(FAMILIES[0], "shuffled", method=method)
