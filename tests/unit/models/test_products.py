"""Products of a few rows with large matrices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target
from torch import Tensor, nn
from torch.nn.functional import linear

import draftlens
from draftlens.models import onednn_linear as products
from draftlens.models.onednn_linear import FEW, MANY, few_rows, has_large, is_large, product

pytestmark = pytest.mark.skipif(
    not products.is_available(), reason="torch was built without MKL or oneDNN"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Matrices of any size count as large; the rows of every product by oneDNN."""
    heard: list[int] = []

    def listen(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        heard.append(states[..., 0].numel())
        return product(states, weight, bias)

    monkeypatch.setattr(products, "LARGE", 1)
    monkeypatch.setattr(products, "product", listen)
    return heard


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_tokens_equal_stock_generate(family: Family, method: str, calls: list[int]) -> None:
    """In a ragged batch, for target and draft."""
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=draft(family),
        method=METHODS[method],
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, family.richest)
    assert FEW < min(calls) <= max(calls) <= MANY


@torch.inference_mode()
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [4, 12, 26, 64])
def test_products_are_as_exact_as_those_of_many_rows(rows: int, has_bias: bool) -> None:
    """Beside the same product in float64."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, MANY, 300, generator=generator)
    weight = torch.randn(700, 300, generator=generator)
    bias = torch.randn(700, generator=generator) if has_bias else None
    exact = linear(states.double(), weight.double(), None if bias is None else bias.double())
    usual = float((linear(states, weight, bias) - exact).abs().max())
    few = states[:, : rows // 2]
    error = float((product(few, weight, bias) - exact[:, : rows // 2]).abs().max())
    assert error <= 1.5 * usual < 1e-4


@torch.inference_mode()
def test_only_few_rows_but_more_than_three_use_it(calls: list[int]) -> None:
    layer = nn.Linear(8, 8)
    for rows in (1, 2, 3, 4, 64, 65):
        with few_rows(torch.zeros(1, rows), applies=True):
            layer(torch.randn(1, rows, 8))
    assert calls == [4, 64]
    with few_rows(torch.zeros(1, 4), applies=False):
        layer(torch.randn(1, 4, 8))
    assert calls == [4, 64]


@torch.inference_mode()
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_module_computes_what_it_did(has_bias: bool, calls: list[int]) -> None:
    layer = nn.Linear(16, 8, bias=has_bias)
    states = torch.randn(2, 3, 16)
    with few_rows(torch.zeros(2, 3), applies=True):
        output = layer(states)
    assert calls == [6]
    torch.testing.assert_close(output, layer(states))


@torch.inference_mode()
def test_autocast_and_other_weights_are_left_alone(calls: list[int]) -> None:
    tokens, states = torch.zeros(1, 4), torch.randn(1, 4, 8)
    layer = nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16), few_rows(tokens, applies=True):
        assert layer(states).dtype == torch.bfloat16
    with few_rows(tokens, applies=True):
        layer.bfloat16()(states.bfloat16())
    assert not calls


def test_what_is_large() -> None:
    cpu = torch.device("cpu")
    assert is_large((1536, 8960), torch.float32, cpu)
    assert not is_large((1536, 1536), torch.float32, cpu)
    assert not is_large((1536, 8960), torch.bfloat16, cpu)
    assert not is_large((1536, 8960), torch.float32, torch.device("cuda:0"))
    assert not is_large((8_000_000,), torch.float32, cpu)


def test_it_can_be_switched_off() -> None:
    layers = [nn.Linear(2000, 2000)]
    assert has_large(layers)
    was_enabled, *_ = torch.backends.mkldnn.set_flags(False)
    try:
        assert not has_large(layers)
    finally:
        torch.backends.mkldnn.set_flags(was_enabled)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not has_large(layers)
    finally:
        torch.set_float32_matmul_precision(before)
