"""Coupled sampling: the tokens of plain decoding with the same seed, whatever the draft says."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from stock import LONG, METHODS, NEW, draft, target

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "together": {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
}


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize(
    ("temperature", "chosen"),
    [(1.0, name) for name in FILTERS]
    + [(heat, name) for heat in (0.3, 2.0) for name in ("all", "together")],
)
def test_same_tokens(family: Family, temperature: float, chosen: str) -> None:
    """A ragged batch; the draft is right at times."""
    options = {
        "do_sample": True,
        "seed": 17,
        "temperature": temperature,
        "max_new_tokens": NEW,
        **FILTERS[chosen],
    }
    given = inputs(family, family.richest)
    plain = draftlens.generate(target(family), given, **options)
    assert len({tuple(row) for row in plain.tokens}) == len(plain.tokens)
    method = METHODS[
        "eagle" if (FAMILIES.index(family) + list(FILTERS).index(chosen)) % 2 else "chain5"
    ]
    result = draftlens.generate(
        target(family), given, draft=draft(family), method=method, **options
    )
    assert result.tokens == plain.tokens
    assert 0 < result.stats.accepted < result.stats.drafted


@every_family
@pytest.mark.parametrize("method", ["chain5", "odd"])
def test_a_model_that_drafts_for_itself_is_always_right(family: Family, method: str) -> None:
    """The draft draws with the target's noise: as the odd tree's first draft token, a leaf, or
    along the whole chain."""
    options = {"do_sample": True, "seed": 4, "temperature": 1.0, "max_new_tokens": NEW}
    given = inputs(family, family.richest)
    result = draftlens.generate(
        target(family), given, draft=target(family), method=METHODS[method], **options
    )
    assert result.tokens == draftlens.generate(target(family), given, **options).tokens
    assert result.stats.mean_acceptance_length == {"chain5": 6, "odd": 2}[method]


@every_family
def test_the_seed_is_what_decides(family: Family) -> None:
    """Same seed, same words; another seed, others; rows of one prompt do not share their noise."""
    given = inputs(family, "text", rows=(0, 0))
    options = {"do_sample": True, "max_new_tokens": 13, "draft": draft(family)}
    first, again, other = (
        draftlens.generate(target(family), given, seed=seed, **options) for seed in (1, 1, 2)
    )
    assert first.tokens == again.tokens != other.tokens
    assert first.tokens[0] != first.tokens[1]


@every_family
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_and_endings(family: Family, padding: str) -> None:
    """End-of-sequence tokens and padding do not shift the noise of anything that follows."""
    options = {"do_sample": True, "seed": 8, "temperature": 0.7}
    given = inputs(family, family.richest, side=padding)
    whole = draftlens.generate(
        target(family), inputs(family, family.richest), max_new_tokens=LONG, **options
    ).tokens
    eos = [whole[0][6], whole[1][14]]
    ends = [next((i + 1 for i, token in enumerate(row) if token in eos), LONG) for row in whole]
    result = draftlens.generate(
        target(family), given, draft=draft(family), max_new_tokens=LONG, eos_token_id=eos, **options
    )
    assert result.tokens == [row[:end] for row, end in zip(whole, ends, strict=True)]


@every_family
def test_rejection_with_equal_models_rejects_nothing(family: Family) -> None:
    """With p = q every draft token of a chain stands, whatever was drawn."""
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=target(family),
        method={"sampling_rule": "rejection"},
        do_sample=True,
        seed=3,
        max_new_tokens=NEW,
    )
    assert result.stats.accepted == result.stats.drafted
