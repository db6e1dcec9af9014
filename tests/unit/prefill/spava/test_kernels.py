"""Kernels that return the log-sum-exp, compared with the formula in float64."""

from __future__ import annotations

import pytest
import torch

from draftlens.prefill.spava.kernels import attend, attend_by_formula

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float64: 1e-12}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 16), (6, 2, 24), (3, 1, 20)])
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (33, 33), (7, 40)])
def test_it_is_the_formula(
    device: str, dtype: torch.dtype, heads: int, groups: int, width: int, queries: int, keys: int
) -> None:
    """Grouped heads, odd sizes, keys that are a slice of a longer tensor."""
    generator = torch.Generator().manual_seed(queries)
    query = torch.randn(heads, queries, width, generator=generator).to(device, dtype)
    key = torch.randn(groups, keys + 3, width, generator=generator).to(device, dtype)[:, 2:-1]
    value = torch.randn(groups, keys + 3, width, generator=generator).to(device, dtype)[:, 1:-2]
    for causal in (False, True) if queries == keys else (False,):
        part = attend(query, key, value, 0.3, causal)
        exact = attend_by_formula(query.double(), key.double(), value.double(), 0.3, causal)
        assert part.out.dtype == dtype
        assert (part.out - exact.out).abs().max() < BOUNDS[dtype]
        assert (part.lse - exact.lse).abs().max() < BOUNDS[dtype]


def test_values_may_have_another_width() -> None:
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)
    part = attend(query, key, value, 1.0, causal=True)
    exact = attend_by_formula(query.double(), key.double(), value.double(), 1.0, causal=True)
    assert (part.out - exact.out).abs().max() < 2e-6


@pytest.mark.parametrize(("queries", "keys"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_attend_to(queries: int, keys: int) -> None:
    """The kernel of the CPU would end the process."""
    part = attend(torch.ones(2, queries, 8), torch.ones(1, keys, 8), torch.ones(1, keys, 8), 1.0)
    assert part.out.shape == (2, queries, 8)
    assert not part.out.any()
    assert part.lse.isneginf().all()
