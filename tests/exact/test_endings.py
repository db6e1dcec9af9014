"""Where an answer ends, although tokens arrive several at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import FAMILIES, VOCAB, Family, inputs, tokenizer
from fuzzing import check_caches
from stock import LONG, METHODS, Divisible, draft, noisy, reference, stock, target
from transformers import StoppingCriteria, StopStringCriteria

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle"])
NEVER = VOCAB
"""An end-of-sequence id that no model says, which makes stock `generate` pad the rows that a
criterion ends."""

every_drafter = pytest.mark.parametrize("drafter", ["noisy", "self"])


def both(
    family: Family, method: str, drafter: str, **options: Any
) -> tuple[draftlens.Result, list[list[int]]]:
    """Our answer and stock's for the family's richest input."""
    given = inputs(family, family.richest)
    options = {"max_new_tokens": LONG, **options}
    expected = stock(target(family), given, **options)
    result = draftlens.generate(
        target(family), given, draft=draft(family, drafter), method=METHODS[method], **options
    )
    return result, expected


@every_family
def test_eos_inside_an_accepted_run(family: Family) -> None:
    """What the draft says right after it is not said."""
    rows = reference(family, family.richest, LONG)
    # With itself as a draft of five, a model emits 1 token and then runs of 5 draft tokens and a
    # bonus.
    middle = next(
        i
        for i, token in enumerate(rows[0])
        if i % 6 in (2, 3, 4) and i > 6 and token not in rows[0][:i]
    )
    result, expected = both(family, "chain5", "self", eos_token_id=rows[0][middle])
    assert result.tokens == expected
    assert result.tokens[0] == rows[0][: middle + 1]
    assert result.from_draft[0][middle - 1 :] == [True, True]
    assert rows[0][middle + 1] not in result.tokens[0][middle:]


@pytest.mark.pairwise("ends")
@every_family
@methods
def test_eos_at_once(family: Family, method: str) -> None:
    """One row's first token ends it; the draft never sees it run."""
    first = reference(family, family.richest, LONG)[0][0]
    result, expected = both(family, method, "noisy", eos_token_id=[first, 0])
    assert result.tokens == expected
    assert result.tokens[0] == [first]


@every_family
def test_eos_of_all_rows_at_once(family: Family) -> None:
    """The draft is not even asked to read the prompt."""
    firsts = [row[0] for row in reference(family, family.richest, LONG)]
    result, expected = both(family, "chain5", "noisy", eos_token_id=firsts)
    assert result.tokens == expected == [[first] for first in firsts]
    assert result.stats.draft_forwards == result.stats.passes == 0


@pytest.mark.pairwise("ends")
@every_family
@pytest.mark.parametrize("most", [1, 2, 4, 7, 8])
@pytest.mark.parametrize(("drafter", "method"), [("self", "chain5"), ("noisy", "eagle")])
def test_max_new_tokens_inside_an_accepted_run(
    family: Family, most: int, drafter: str, method: str
) -> None:
    """Never one too many, nor one too few."""
    result, expected = both(family, method, drafter, max_new_tokens=most)
    rows = reference(family, family.richest, most)
    assert result.tokens == expected == rows


@every_family
def test_max_length_counts_the_padded_prompt(family: Family) -> None:
    """As stock `generate` does."""
    length = inputs(family, family.richest)["input_ids"].shape[1]
    result, _ = both(family, "chain3", "noisy", max_length=length + 5, max_new_tokens=None)
    assert result.tokens == [row[:5] for row in reference(family, family.richest, LONG)]


@pytest.mark.pairwise("ends")
@every_family
@methods
@every_drafter
def test_a_custom_criterion(family: Family, method: str, drafter: str) -> None:
    """It is asked about every token, not about every round."""
    length = inputs(family, family.richest)["input_ids"].shape[1]
    result, expected = both(
        family, method, drafter, stopping_criteria=[Divisible(length)], eos_token_id=NEVER
    )
    assert result.tokens == expected
    assert min(map(len, expected)) < LONG


@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_caches_hold_what_rows_in_step_have_emitted(method: str) -> None:
    """Rows whose draft tokens were accepted beyond those of another row emit only as many."""
    family = FAMILIES[2]
    given = inputs(family, family.richest)
    stream = draftlens.stream(
        target(family),
        given,
        draft=draft(family),
        method=METHODS[method],
        max_new_tokens=LONG,
        stopping_criteria=[Divisible(given["input_ids"].shape[1])],
    )
    shortened = 0
    for chunk in stream:
        check_caches(stream.session)
        shortened += all(chunk.from_draft)
    assert shortened > len(stream.result.tokens)  # not at the ends of answers alone


class AtLengths(StoppingCriteria):
    """Ends each row at a length of its own, which it knows by the row's index."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """One truth per row."""
        return self.lengths <= input_ids.shape[1]


@pytest.mark.pairwise("ends")
@every_family
@methods
def test_a_criterion_that_tells_rows_apart(family: Family, method: str) -> None:
    """It is asked about each row in its own place."""
    length = inputs(family, family.richest)["input_ids"].shape[1]
    lengths = [length + 11, length + 4, length + 8]
    result, expected = both(
        family, method, "self", stopping_criteria=[AtLengths(lengths)], eos_token_id=NEVER
    )
    assert result.tokens == expected
    assert [len(row) for row in expected] == [11, 4, 8]


@every_family
def test_a_criterion_that_returns_one_bool(family: Family) -> None:
    """Stock `generate` takes that too."""
    given = inputs(family, "text", rows=(0,))
    criteria = [Divisible(given["input_ids"].shape[1], as_bool=True)]
    expected = stock(target(family), given, max_new_tokens=LONG, stopping_criteria=criteria)
    result = draftlens.generate(
        target(family), given, draft=draft(family), max_new_tokens=LONG, stopping_criteria=criteria
    )
    assert result.tokens == expected
    assert len(expected[0]) < LONG


def as_criterion(stop: str) -> dict[str, Any]:
    """A stop string as a criterion of the caller's."""
    return {"stopping_criteria": [StopStringCriteria(tokenizer(), stop)]}


def as_option(stop: str) -> dict[str, Any]:
    """A stop string as `generate` takes it."""
    return {"stop_strings": stop, "tokenizer": tokenizer()}


@pytest.mark.pairwise("ends")
@every_family
@methods
@pytest.mark.parametrize("given_as", [as_criterion, as_option])
def test_stop_strings(
    family: Family, method: str, given_as: Callable[[str], dict[str, Any]]
) -> None:
    """A string that begins inside one token and ends inside another."""
    row = reference(family, family.richest, LONG)[0]
    pieces = tokenizer().batch_decode([[token] for token in row])
    at = next(
        i for i in range(8, LONG) if len(pieces[i - 1] + pieces[i]) > 2 and pieces[i][:1].isalnum()
    )
    stop = pieces[at - 1][-1] + pieces[at][:1]
    result, expected = both(family, method, "self", **given_as(stop), eos_token_id=NEVER)
    assert result.tokens == expected
    assert len(expected[0]) <= at + 1


@every_family
def test_a_model_with_its_own_eos(family: Family) -> None:
    """Ids come from the model's generation config when the call names none."""
    model, rows = family.build(), reference(family, family.richest, LONG)
    model.generation_config.eos_token_id = [rows[1][6], rows[2][11]]
    given = inputs(family, family.richest)
    expected = stock(model, given, max_new_tokens=LONG)
    result = draftlens.generate(model, given, draft=noisy(model), max_new_tokens=LONG)
    assert result.tokens == expected
    assert len(expected[1]) <= 7
