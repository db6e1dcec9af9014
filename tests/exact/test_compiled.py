"""Passes over static buffers: the tokens of stock `generate`, whatever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from compiling import attach_static, library_of
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target

import draftlens
from draftlens.compiled.shapes import ANY
from draftlens.core import tree as trees
from draftlens.models import Backbone

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.fixture(autouse=True)
def static_passes() -> Iterator[None]:
    """Nothing is compiled here: what is traced runs as it stands."""
    with patch("draftlens.request.attach", attach_static):
        yield


@every_family
def test_every_family_answers_by_static_passes(family: Family) -> None:
    """A ragged batch, trees, and rows of the richest kind of input."""
    for method in ("chain5", "eagle"):
        result = draftlens.generate(
            target(family),
            inputs(family, family.richest),
            draft=draft(family),
            method=METHODS[method],
            max_new_tokens=NEW,
            compile=True,
        )
        assert result.tokens == reference(family, family.richest)
    kinds = {(shape.rows, shape.width) for shape in library_of(target(family)).calls}
    assert (ANY, ANY) in kinds


@every_family
def test_logits_move_less_than_a_near_tie(family: Family) -> None:
    """A static pass writes the slots that the modules write, and computes their logits."""
    backbone = Backbone.of(target(family))
    ids = torch.arange(1, 13).reshape(2, 6)
    prompt = backbone.text_prompt(ids[:, :3])
    positions = prompt.positions(torch.arange(3).expand(2, -1))
    expected = _forward(backbone, prompt, ids[:, 3:], positions)
    attach_static([backbone])
    logits = _forward(backbone, prompt, ids[:, 3:], positions)
    for ours, theirs in zip(logits, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def _forward(
    backbone: Backbone, prompt: Any, tokens: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of a pass behind rows of 3 and 2 tokens, and the keys and values of the last layer."""
    cache = backbone.new_cache(prompt, room=3)
    backbone.prefill(prompt, cache)
    cache.truncate([3, 2])
    mask = trees.attention_mask([3, 2], torch.ones(3, 3, dtype=torch.bool).tril())
    logits = backbone.forward(tokens, positions, cache, mask)
    layer = cache.layers[-1]
    return logits, layer.keys[1, :, :5].clone(), layer.values[1, :, :5].clone()


def test_no_kind_of_pass_is_made_twice_once_all_are_there() -> None:
    """Mixed lengths, trees, batches, and rows that join and leave: eight kinds of passes."""
    family = FAMILIES[0]
    model = target(family)
    for rows in ((0,), (0, 1), (2, 0, 1)):
        for method in ("chain1", "chain5", "eagle", "odd"):
            draftlens.generate(
                model,
                inputs(family, "text", rows),
                draft=draft(family),
                method=METHODS[method],
                max_new_tokens=NEW,
                compile=True,
            )
    made = set(library_of(model).runners) | set(library_of(draft(family)).runners)
    assert len(made) <= 4
