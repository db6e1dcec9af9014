"""Merged parts of attention equal attention to all keys, computed in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from draftlens.prefill.spava.lse_merge import Part, merge_parts, merge_running


def parts_by_hand(scores: Tensor, values: Tensor, edges: list[int]) -> list[Part]:
    """Float32 parts of attention with these scores ``[H, T, K]``, cut at `edges`."""
    parts = []
    for start, end in pairwise(edges):
        piece = scores[..., start:end].double()
        lse = piece.logsumexp(-1)
        weights = torch.exp(piece - lse[..., None]).nan_to_num(nan=0.0)
        parts.append(Part((weights @ values[:, start:end].double()).float(), lse.float()))
    return parts


def running(parts: list[Part]) -> Part:
    merged = parts[0]
    for part in parts[1:]:
        merged = merge_running(merged, part)
    return merged


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64])
def test_parts_are_merged_to_the_whole(count: int) -> None:
    """Scores of very different magnitude, which overflow unless the largest is subtracted."""
    generator = torch.Generator().manual_seed(count)
    scores = torch.randn(3, 5, 64, generator=generator) * 60
    values = torch.randn(3, 64, 8, generator=generator)
    edges = [64 * cut // count for cut in range(count + 1)]
    parts = parts_by_hand(scores, values, edges)
    expected = torch.softmax(scores.double(), -1) @ values.double()
    # A log-sum-exp of float32 is rounded in relation to its size, and with it a part's weight.
    bound = float(scores.max() * values.abs().max()) * torch.finfo(torch.float32).eps
    for merged in (merge_parts(parts), running(parts)):
        assert (merged.out - expected).abs().max() < bound
        assert torch.allclose(merged.lse.double(), scores.double().logsumexp(-1), rtol=1e-6)


@pytest.mark.parametrize("merged_by", [merge_parts, running])
def test_rounding_is_that_of_float32(merged_by: object) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 9, 64, generator=generator)
    values = torch.randn(4, 64, 8, generator=generator)
    parts = parts_by_hand(scores, values, list(range(65)))
    expected = torch.softmax(scores.double(), -1) @ values.double()
    assert (merged_by(parts).out - expected).abs().max() < 1e-6  # type: ignore[operator]


@pytest.mark.parametrize("merged_by", [merge_parts, running])
def test_parts_that_saw_nothing_count_for_nothing(merged_by: object) -> None:
    """Whatever their output holds; a query that saw nothing at all gets zeros and -inf."""
    nothing = Part(torch.full((2, 3), torch.nan), torch.tensor([-torch.inf, -torch.inf]))
    seen = Part(torch.tensor([[1.0, 2.0, 3.0], [torch.nan] * 3]), torch.tensor([0.5, -torch.inf]))
    for order in ([nothing, seen, nothing], [seen, nothing], [nothing, nothing, seen]):
        merged = merged_by(order)  # type: ignore[operator]
        assert merged.out.tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
        assert merged.lse.tolist() == [0.5, -torch.inf]
