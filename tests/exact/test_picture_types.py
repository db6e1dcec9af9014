"""Pictures of real processors, which are made from their classes: the tokens of stock
`generate`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from document_models import READERS, Pictured
from multimodal_types import NEW, noisy, stock
from picture_types import PICTURE_TYPES

import draftlens
from draftlens.models.adapter import Backbone

TYPES = (*READERS, *PICTURE_TYPES)
CHAIN, TREE = {"num_speculative_tokens": 4}, {"tree": "eagle"}


@cache
def built(pictured: Pictured) -> tuple[Any, Any]:
    return pictured.build()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("pictured", TYPES, ids=str)
def test_two_rows_with_pictures(pictured: Pictured) -> None:
    """Of different sizes, with lookup, chains and trees where draft tokens can be verified."""
    model, processor = built(pictured)
    given = pictured.inputs(processor)
    expected = stock(model, given)
    assert all(len(set(row)) > 3 for row in expected)
    assert stock(model, pictured.inputs(processor, dark=0.4)) != expected
    backbone, draft = Backbone(model), noisy(model, 0.03)
    methods: list[dict[str, Any]] = [{"method": "plain"}]
    if not backbone.plain_only:
        methods += [{"method": "lookup"}, {"draft": draft, "method": CHAIN}]
        if not getattr(backbone, "chains_only", ""):
            methods.append({"draft": draft, "method": TREE})
    accepted = drafted = 0
    for options in methods:
        result = draftlens.generate(model, given, max_new_tokens=NEW, **options)
        assert result.tokens == expected
        assert result.lossless
        accepted += result.stats.accepted
        drafted += result.stats.drafted
    assert backbone.plain_only or 0 < accepted < drafted
