"""Formulas of the benchmark of prefills, against what the code counts, and its greedy answers."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.spava_parts.formulas import causal, pairs
from benchmarks.spava_parts.spoken import following
from draftlens.prefill.spava.blocks import Share, divide
from draftlens.prefill.spava.flops import Work
from draftlens.prefill.spava.one_process_attention import attend_in_blocks

HEADS = 2
WIDTH = 4


@pytest.mark.parametrize(("anchor", "passing", "count"), [(9, 4, 16), (0, 0, 5), (3, 99, 4)])
def test_pairs_are_those_that_the_code_counts(anchor: int, passing: int, count: int) -> None:
    """All hosts together compute what one computes, but for copies of the anchor."""
    blocks = divide(211, 208, anchor, passing, count)
    work = Work()
    states = torch.zeros(HEADS, 211, WIDTH)
    attend_in_blocks(states, states, states, blocks, partial(work.attend, scaling=1.0), 0)
    whole = pairs(Share(blocks, 0, 1))
    assert work.flops == 4 * HEADS * WIDTH * whole
    for size in (2, 3):
        shares = [Share(blocks, rank, size) for rank in range(size)]
        assert sum(map(pairs, shares)) == whole + (size - 1) * causal(anchor)


def test_what_follows_in_a_text() -> None:
    """After the same place, or else after the last two tokens, or nothing."""
    text = [5, 6, 7, 8, 9]
    assert following(text, [5, 6]) == [7, 8, 9]
    assert following(text, [1, 6, 7]) == [8, 9]
    assert following(text, [4, 4, 6, 7]) == [8, 9]
    assert following(text, [5, 6, 7, 8, 9]) == []
    assert following(text, [1, 2]) == []
