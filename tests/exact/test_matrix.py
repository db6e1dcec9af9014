"""Every family, kind of input, draft and method: the same tokens as stock `generate`."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from families import Family, inputs
from stock import ALL_KINDS, LONG, METHODS, NEW, answers, draft, ranks_of, reference, rounds, target
from transformers import LogitsProcessor

import draftlens
from draftlens.methods.base import from_dict

CASES = [
    *(("noisy", method) for method in METHODS),
    ("self", "chain5"),
    ("self", "odd"),
    ("random", "odd"),
]
every_kind = pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=lambda value: str(value))


@every_kind
def test_the_reference_is_worth_comparing_with(family: Family, kind: str) -> None:
    """It does not run in circles."""
    rows = reference(family, kind, LONG)
    assert all(len(set(row)) >= 8 for row in rows)
    assert len({tuple(row) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("family", "kind"), [pair for pair in ALL_KINDS if pair[1] != "text"], ids=str
)
def test_the_reference_depends_on_the_pictures(family: Family, kind: str) -> None:
    """Otherwise mistakes about them would go unseen."""
    given = inputs(family, kind)
    darker = {
        key: value * 0.5 if key.startswith("pixel_values") else value
        for key, value in given.items()
    }
    output = target(family).generate(**darker, max_new_tokens=NEW, do_sample=False)
    assert answers(target(family), given, output) != reference(family, kind)


@pytest.mark.pairwise("kinds")
@every_kind
def test_plain_decoding(family: Family, kind: str) -> None:
    """The loop with an empty tree is stock decoding."""
    result = draftlens.generate(
        target(family), inputs(family, kind), method=draftlens.PlainDecoding(), max_new_tokens=NEW
    )
    assert result.tokens == reference(family, kind)
    assert result.stats.mean_acceptance_length == 1
    assert not any(map(any, result.from_draft))


@pytest.mark.pairwise("kinds")
@every_kind
def test_the_default_without_a_draft(family: Family, kind: str) -> None:
    """It copies from the context where that pays by the clock, so only the tokens are certain."""
    result = draftlens.generate(target(family), inputs(family, kind), max_new_tokens=NEW)
    assert result.tokens == reference(family, kind)
    assert result.lossless


@pytest.mark.pairwise("kinds")
@every_kind
@pytest.mark.parametrize(("drafter", "method"), CASES)
def test_a_ragged_batch(family: Family, kind: str, drafter: str, method: str) -> None:
    """Three rows of different lengths that accept different numbers of tokens."""
    result = run(family, kind, drafter, method)
    assert result.tokens == reference(family, kind)
    assert result.lossless
    assert result.stats.accepted_by_depth == expected_depths(family, kind, drafter, method)
    check_agreement(result, drafter, method)


@pytest.mark.pairwise("kinds")
@every_kind
@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_a_batch_of_one(family: Family, kind: str, method: str) -> None:
    """The first row alone, whose cache is read and written without gathering."""
    result = run(family, kind, "noisy", method, rows=(0,))
    assert result.tokens == reference(family, kind)[:1]
    assert result.stats.accepted_by_depth == expected_depths(family, kind, "noisy", method, rows=1)


def run(
    family: Family, kind: str, drafter: str, method: str, rows: tuple[int, ...] = (0, 1, 2)
) -> draftlens.Result:
    """One call of the library."""
    given: dict[str, Any] = inputs(family, kind, rows)
    return draftlens.generate(
        target(family),
        given,
        draft=draft(family, drafter),
        method=METHODS[method],
        max_new_tokens=NEW,
    )


def check_agreement(result: draftlens.Result, drafter: str, method: str) -> None:
    """The draft was as right as its weights make it."""
    stats = result.stats
    depth = {"chain1": 1, "chain3": 3, "chain5": 5, "eagle": 5, "odd": 4}[method]
    assert stats.accepted == sum(map(sum, result.from_draft))
    assert stats.emitted == NEW * len(result.tokens)
    # Every pass emits the target's own token besides, unless the answer ends inside the accepted
    # run.
    assert 0 <= stats.first + stats.passes + stats.accepted - stats.emitted <= len(result.tokens)
    if drafter == "noisy":
        assert 0 < stats.accepted < stats.drafted
        assert 1.2 < stats.mean_acceptance_length < 1 + 0.8 * depth
    if drafter == "self":
        # All of a chain; of the odd tree the likeliest draft token alone, which is a leaf.
        assert stats.mean_acceptance_length == {"chain5": 6, "odd": 2}[method]
    if drafter == "random":
        assert stats.mean_acceptance_length < 1.2


def expected_depths(
    family: Family, kind: str, drafter: str, method: str, rows: int = 3
) -> Counter[int]:
    """The rounds of a draft that says what it would say had it read the answer afresh: computed
    without the engine."""
    return rounds(
        from_dict(METHODS[method]).topology, ranks_of_the_answer(family, kind, drafter)[:rows]
    )


@cache
def ranks_of_the_answer(family: Family, kind: str, drafter: str) -> list[list[int]]:
    """How many tokens the draft likes better than each of the target's; stock `generate` is
    dictated the answer."""
    answer, given = torch.tensor(reference(family, kind)), inputs(family, kind)
    dictated = Dictated(answer, given["input_ids"].shape[1])
    output = draft(family, drafter).generate(
        **given,
        do_sample=False,
        max_new_tokens=NEW,
        logits_processor=[dictated],
        return_dict_in_generate=True,
        output_logits=True,
    )
    return ranks_of(torch.stack(output.logits, 1), answer)


class Dictated(LogitsProcessor):
    """Lets a model say nothing but what is dictated, int64 ``[B, T]``."""

    def __init__(self, answer: torch.Tensor, prompt_length: int) -> None:
        self.answer, self.prompt_length = answer, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leave one token possible."""
        said = self.answer[:, input_ids.shape[1] - self.prompt_length]
        return torch.full_like(scores, -torch.inf).scatter(1, said[:, None], 0.0)
