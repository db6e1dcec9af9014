"""Greedy answers that are checked against a text are those of decoding token by token."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, inputs
from stock import LONG, reference, target

from benchmarks.spava_parts.spoken import Read, along, greedy
from draftlens.models.adapter import Backbone


@pytest.mark.parametrize("family", [FAMILIES[2], FAMILIES[4]], ids=str)
@pytest.mark.parametrize("change", ["same", "substituted", "shifted", "other"])
def test_any_text_gives_the_same_answer(family, change) -> None:  # type: ignore[no-untyped-def]
    backbone = Backbone.of(target(family))
    given = inputs(family, family.richest, rows=(0,))
    prompt = backbone.encode(backbone.prepare(given, max_new_tokens=LONG))
    cache = backbone.new_cache(prompt, LONG)
    read = Read(prompt, cache, backbone.prefill(prompt, cache)[0, -1])
    expected = reference(family, family.richest, LONG)[0]
    texts = {
        "same": expected,
        "substituted": [*expected[:2], expected[2] + 1, *expected[3:]],
        "shifted": expected[1:],
        "other": [1, 2, 3],
    }
    ends = backbone.model.generation_config.eos_token_id
    spoken = greedy(backbone, read, texts[change], [] if ends is None else [ends], LONG)
    assert spoken.tokens == expected
    assert len(spoken.logits) == len(expected)
    cache.truncate(prompt.lengths)
    again = along(backbone, read, expected)
    assert torch.allclose(again, spoken.logits, atol=1e-4)
    assert cache.lengths == prompt.lengths
