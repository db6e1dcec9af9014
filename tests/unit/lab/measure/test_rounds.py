"""The simulation of verification passes, against passes that were counted by hand."""

from __future__ import annotations

import pytest
from draftlens_lab.measure.rounds import (
    acceptance_length,
    accepted_depth,
    accepted_per_pass,
    by_depth,
    rounds,
)

from draftlens.core.tree import chain, from_paths

T, F = True, False


@pytest.mark.parametrize(
    ("hits", "gamma", "accepted"),
    [
        ([], 5, []),
        ([T] * 12, 5, [5, 5]),  # the twelfth is the bonus of the second pass
        ([T] * 13, 5, [5, 5, 1]),
        ([F] * 4, 5, [0, 0, 0, 0]),
        ([T, F, T, T, F, T], 5, [1, 2, 1]),
        ([T, F, T, T, F, T], 1, [1, 1, 0, 1]),
        ([T, T, F], 2, [2]),  # a bonus needs no draft token
    ],
)
def test_rounds(hits: list[bool], gamma: int, accepted: list[int]) -> None:
    assert rounds(hits, gamma) == accepted


def test_acceptance_length_counts_the_bonus_and_not_the_first_token() -> None:
    assert acceptance_length([[T] * 12, [F] * 4], 5) == 16 / 6
    assert acceptance_length([[]], 5) is None
    assert acceptance_length([[T] * 600], 5) == 6


def test_acceptance_by_depth_counts_draft_tokens_whose_forerunners_stood() -> None:
    # Passes: TF (depth 1 right, 2 wrong), TTT with a bonus, F, and TT at the end, where no third
    # draft token counts.
    hits = [T, F, T, T, T, T, F, T, T]
    assert rounds(hits, 3) == [1, 3, 0, 2]
    depths = by_depth([hits, []], 3)
    assert [(d["right"], d["total"]) for d in depths.values()] == [(3, 4), (2, 3), (1, 1)]


def test_a_tree_accepts_draft_tokens_by_their_rank() -> None:
    """Two first draft tokens, two after the better one and one after the other."""
    tree = from_paths([[0], [1], [0, 0], [0, 1], [1, 0]])
    assert accepted_depth([1, 2, 1], tree) == 2
    assert accepted_depth([2, 1], tree) == 2
    assert accepted_depth([2, 2], tree) == 1
    assert accepted_depth([3, 1], tree) == 0
    assert accepted_depth([], tree) == 0
    assert accepted_per_pass([1, 2, 9, 3, 2, 2, 1], tree) == [2, 0, 1, 1]


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_a_chain_accepts_only_first_draft_tokens(gamma: int) -> None:
    ranks = [1, 1, 2, 1, 1, 1, 1, 1, 1, 3, 1]
    assert accepted_per_pass(ranks, chain(gamma)) == rounds([rank == 1 for rank in ranks], gamma)


def test_without_draft_tokens_every_pass_emits_one_token() -> None:
    assert accepted_per_pass([1, 1, 1], chain(0)) == [0, 0, 0]
