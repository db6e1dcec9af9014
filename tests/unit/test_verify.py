"""Trimming stock's output and finding the first difference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from draftlens import verify as measured
from draftlens.verify import Divergence, StockRun, first_divergence, trim


def test_a_row_ends_with_its_first_end_of_sequence_id() -> None:
    assert trim([5, 9, 0, 0], frozenset([9])) == [5, 9]
    assert trim([5, 8, 9, 7], frozenset([9, 8])) == [5, 8]
    assert trim([5, 6], frozenset([9])) == [5, 6]
    assert trim([5, 0, 0], frozenset()) == [5, 0, 0]


def test_identical_answers_have_no_divergence() -> None:
    assert first_divergence(StockRun([[1, 2], [3]], 1.0, 0.1), [[1, 2], [3]]) is None


def test_the_first_difference_comes_with_its_margin() -> None:
    logits = torch.zeros(3, 2, 8)
    logits[1, 1, 4], logits[1, 1, 6] = 2.5, 2.25
    stock = StockRun([[1, 2], [3, 4, 5]], 1.0, 0.1, logits)
    assert first_divergence(stock, [[1, 2], [3, 6, 5]]) == Divergence(1, 1, 4, 6, 0.25)


def test_an_answer_that_ends_early_differs_where_it_ends() -> None:
    stock = StockRun([[1, 2, 3]], 1.0, 0.1, torch.zeros(3, 1, 8))
    assert first_divergence(stock, [[1, 2]]) == Divergence(0, 2, 3, None, None)
    assert first_divergence(stock, [[1, 2, 3, 4]]) == Divergence(0, 3, None, 4, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {7}),
        ({"eos_token_id": None}, set()),
        ({"eos_token_id": 3}, {3}),
        ({"eos_token_id": [3, 4]}, {3, 4}),
        ({"generation_config": SimpleNamespace(eos_token_id=5)}, {5}),
        ({"generation_config": SimpleNamespace(eos_token_id=None)}, {7}),
        ({"generation_config": SimpleNamespace(eos_token_id=5), "eos_token_id": None}, set()),
        ({"generation_config": None}, {7}),
    ],
)
def test_the_end_of_sequence_ids_of_a_call(options: dict[str, object], expected: set[int]) -> None:
    """An option counts before a config of the call, and this before the model's config."""
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=7))
    assert measured._eos_ids(model, options) == expected
