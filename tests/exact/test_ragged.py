"""Batches: padding on either side, rows that end at different times."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import ALL_KINDS, LONG, METHODS, NEW, draft, reference, staggered, stock, target

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle"])


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_padding_on_the_right(family: Family, kind: str) -> None:
    """Stock `generate` cannot do it; each row must say what it says alone."""
    given = inputs(family, kind, side="right")
    assert (given["attention_mask"][:, -1] == 0).any()
    result = draftlens.generate(
        target(family), given, draft=draft(family), method=METHODS["eagle"], max_new_tokens=NEW
    )
    assert result.tokens == [alone(family, kind, row) for row in range(3)]


def alone(family: Family, kind: str, row: int) -> list[int]:
    """Stock tokens of one row by itself."""
    return stock(target(family), inputs(family, kind, rows=(row,)), max_new_tokens=NEW)[0]


@every_family
def test_the_draft_may_be_padded_on_the_other_side(family: Family) -> None:
    """Its inputs are its own."""
    given = inputs(family, family.richest)
    options: dict[str, Any] = {
        "draft": draft(family),
        "method": {"num_speculative_tokens": 5},
        "max_new_tokens": NEW,
    }
    right = inputs(family, family.richest, side="right")
    result = draftlens.generate(target(family), given, draft_inputs=right, **options)
    same_side = draftlens.generate(target(family), given, **options)
    assert result.tokens == same_side.tokens == reference(family, family.richest)
    assert result.stats.accepted_by_depth == same_side.stats.accepted_by_depth


@pytest.mark.pairwise
@every_family
@methods
@pytest.mark.parametrize("drafter", ["noisy", "self"])
def test_rows_end_at_different_times(family: Family, method: str, drafter: str) -> None:
    """A row that has ended goes on beside the others without growing or speaking."""
    eos = staggered(reference(family, family.richest, LONG))
    given = inputs(family, family.richest)
    expected = stock(target(family), given, max_new_tokens=LONG, eos_token_id=eos)
    lengths = [len(row) for row in expected]
    assert len(set(lengths)) == 3
    assert max(lengths) == LONG
    result = draftlens.generate(
        target(family),
        given,
        draft=draft(family, drafter),
        method=METHODS[method],
        max_new_tokens=LONG,
        eos_token_id=eos,
    )
    assert result.tokens == expected
    assert result.stats.emitted == sum(lengths)


@every_family
def test_rows_do_not_touch_each_other(family: Family) -> None:
    """The same row beside other rows, and in another place, says the same."""
    kind = family.richest
    turned = draftlens.generate(
        target(family),
        inputs(family, kind, rows=(2, 0, 1, 2)),
        draft=draft(family),
        max_new_tokens=NEW,
    )
    rows = reference(family, kind)
    assert turned.tokens == [rows[2], rows[0], rows[1], rows[2]]


def test_the_first_answer_of_a_pair_has_many_rows() -> None:
    """The automatic tree knows no cost of such a batch yet."""
    family = next(family for family in FAMILIES if family.name == "qwen2_vl")
    new_target = copy.deepcopy(target(family))
    result = draftlens.generate(
        new_target,
        inputs(family, "image", rows=(2, 0, 1, 2)),
        draft=copy.deepcopy(draft(family)),
        max_new_tokens=NEW,
    )
    rows = reference(family, "image")
    assert result.tokens == [rows[2], rows[0], rows[1], rows[2]]


@every_family
def test_an_unpadded_batch_of_equal_rows(family: Family) -> None:
    """Equal lengths, equal words: the views of the cache serve a batch too."""
    kind = family.richest
    result = draftlens.generate(
        target(family),
        inputs(family, kind, rows=(0, 0)),
        draft=draft(family),
        method=METHODS["odd"],
        max_new_tokens=9,
    )
    assert result.tokens == [reference(family, kind)[0][:9]] * 2


@pytest.mark.parametrize("family", [f for f in FAMILIES if "<|image_pad|>" in f.image], ids=str)
def test_a_prompt_that_ends_in_a_picture(family: Family) -> None:
    """Under M-RoPE its last position is not its largest; what follows stands where stock `generate`
    puts it."""
    given = inputs(family, "image", rows=(0,))
    end = int(
        (given["input_ids"][0] == given["input_ids"].new_tensor(family.config["image_token_id"]))
        .nonzero()
        .max()
    )
    cut = {
        key: value[:, : end + 1] if value.shape[:1] == torch.Size([1]) else value
        for key, value in given.items()
    }
    cut["image_grid_thw"] = given["image_grid_thw"]
    result = draftlens.generate(target(family), cut, draft=draft(family), max_new_tokens=NEW)
    assert result.tokens == stock(target(family), cut, max_new_tokens=NEW)
