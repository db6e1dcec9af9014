"""Rotary positions that depend on how far a forward reaches: exact up to their limit, refused
beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from stock import NEW, noisy, stock

import draftlens
from draftlens import InputError

FAMILY: Family = next(family for family in FAMILIES if family.name == "internvl")
GIVEN = inputs(FAMILY, "image", rows=(0,))
LENGTH = GIVEN["input_ids"].shape[1]
GUESSERS = {
    "chain": {"num_speculative_tokens": 5},
    "tree": {"tree": "eagle"},
    "self": {"method": "specvlm", "tree": "eagle"},
}

guessers = pytest.mark.parametrize("guesser", GUESSERS)


def model(kind: str, limit: int) -> Any:
    """A new one for each answer: `dynamic` frequencies stay as long calls left them."""
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
        rope |= {**factors, "original_max_position_embeddings": limit}
        return FAMILY.build(rope_parameters=rope, max_position_embeddings=2 * limit)
    return FAMILY.build(rope_parameters=rope, max_position_embeddings=limit)


def ask(kind: str, limit: int, guesser: str | None) -> draftlens.Result:
    whole = model(kind, limit)
    drafting = {} if guesser is None else {"draft": None if guesser == "self" else noisy(whole)}
    method = "plain" if guesser is None else GUESSERS[guesser]
    options: Any = {"method": method, "max_new_tokens": NEW, "allow_long_prompt": True}
    return draftlens.generate(whole, GIVEN, **drafting, **options)


@guessers
@pytest.mark.parametrize(
    ("kind", "limit"), [("dynamic", LENGTH + NEW), ("longrope", LENGTH + NEW), ("longrope", 20)]
)
def test_on_one_side_of_the_limit(kind: str, limit: int, guesser: str) -> None:
    """All of it within, or, where two sets of frequencies are all there is, all of it beyond."""
    result = ask(kind, limit, guesser)
    assert result.tokens == stock(model(kind, limit), GIVEN, max_new_tokens=NEW)
    assert 0 < result.stats.accepted < result.stats.drafted


@guessers
@pytest.mark.parametrize(
    ("kind", "limit"),
    [("dynamic", LENGTH + NEW - 1), ("dynamic", 20), ("longrope", LENGTH + NEW - 1)],
)
def test_beyond_the_limit(kind: str, limit: int, guesser: str) -> None:
    """A sentence; and plain decoding, which guesses nothing, is exact all the same."""
    with pytest.raises(
        InputError,
        match=f'beyond {limit} a draft token would change the {kind} rotary .* method "plain"',
    ):
        ask(kind, limit, guesser)
    assert ask(kind, limit, None).tokens == stock(model(kind, limit), GIVEN, max_new_tokens=NEW)
