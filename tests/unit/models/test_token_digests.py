"""Digests of tokens and media differ where anything differs that the language model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.models.prompt_cache import answer_digests, content_digest, prompt_digests

LENGTHS = [6, 8]
VISUAL = torch.tensor([[0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 1, 0, 0]]).bool()


def prompt(axes: int = 3) -> Prompt:
    """Two rows with features between layers, whose padding holds anything."""
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(int(VISUAL.sum()), 4, generator=generator) for _ in range(2)]
    positions = torch.arange(8).expand(axes, 2, 8).clone()
    return Prompt(
        torch.randn(2, 8, 4, generator=generator),
        positions,
        list(LENGTHS),
        positions[..., -1:] + 1,
        VISUAL,
        {"deepstack_visual_embeds": features, "other": None},
    )


def differing(change: Callable[[Prompt], Any], row: int) -> list[int]:
    """The tokens of a row whose digests differ after a change."""
    before = prompt_digests(prompt(), row)
    changed = prompt()
    change(changed)
    after = prompt_digests(changed, row)
    assert before.shape == after.shape == (LENGTHS[row], 16)
    return (before != after).any(1).nonzero()[0].tolist()  # type: ignore[no-any-return]


def add(table: Tensor, *place: Any) -> None:
    table[place] += 1


CHANGES: Sequence[tuple[Callable[[Prompt], Any], list[int], list[int]]] = [
    (lambda prompt: add(prompt.embeds, 0, 2, 3), [2], []),
    (lambda prompt: add(prompt.embeds, 0, 7), [], []),  # padding
    (lambda prompt: add(prompt.position_ids, 2, 1, 4), [], [4]),
    (lambda prompt: add(prompt.extra["deepstack_visual_embeds"][1], 1), [2], []),
    (lambda prompt: add(prompt.extra["deepstack_visual_embeds"][0], 4, 0), [], [5]),
]


@pytest.mark.parametrize(("change", "first", "second"), CHANGES)
def test_every_token_has_a_digest_of_what_is_read_there(
    change: Callable[[Prompt], Any], first: list[int], second: list[int]
) -> None:
    """The further features of visual tokens are numbered over all rows."""
    assert differing(change, 0) == first
    assert differing(change, 1) == second


def test_a_row_without_visual_tokens_beside_one_that_has_some() -> None:
    read = prompt()
    read.visual[0] = False
    for features in read.extra["deepstack_visual_embeds"]:
        features.resize_(3, 4)
    alone = replace(read, visual=torch.zeros_like(VISUAL), extra={})
    assert (prompt_digests(read, 0) == prompt_digests(alone, 0)).all()
    assert (prompt_digests(read, 1) != prompt_digests(alone, 1)).any()


@pytest.mark.parametrize("axes", [1, 3])
def test_tokens_of_an_answer_have_the_digests_that_they_have_in_a_prompt(axes: int) -> None:
    read = prompt(axes)
    text = slice(6, 8)
    digests = answer_digests(read.embeds[1, text], read.position_ids[:, 1, text])
    assert digests.tolist() == prompt_digests(read, 1)[text].tolist()


def test_contents_differ_by_name_values_type_and_shape() -> None:
    values = torch.arange(6.0)
    contents: list[list[tuple[str, object]]] = [
        [("pixels", values)],
        [("pixels", values + 1)],
        [("other", values)],
        [("pixels", values.view(2, 3))],
        [("pixels", values.view(3, 2))],
        [("pixels", values.view(torch.int32))],
        [("pixels", values), ("size", 3)],
        [("pixels", values), ("size", 4)],
        [],
    ]
    digests = [content_digest(content) for content in contents]
    assert len(set(digests)) == len(contents)
    assert digests == [content_digest(content) for content in contents]
