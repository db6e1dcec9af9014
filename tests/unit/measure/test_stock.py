"""Trimming stock's output and finding the first difference."""

from __future__ import annotations

import torch

from draftlens.measure.stock import Divergence, StockRun, first_divergence, trim


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
