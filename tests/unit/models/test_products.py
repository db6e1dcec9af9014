"""Products of a few rows with large matrices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target
from torch import Tensor, nn
from torch.nn.functional import linear

import draftlens
from draftlens.models import products as products
from draftlens.models.products import (
    FEW,
    LANES,
    MANY,
    TIMINGS,
    LargeProducts,
    exchanged_product,
    few_rows,
    has_large,
    is_large,
    product,
    usual_product,
)

pytestmark = pytest.mark.skipif(
    not products.is_available(), reason="torch was built without MKL or oneDNN"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Matrices of any size count as large; the rows of every product that is computed here."""
    heard: list[int] = []

    def usual(rows: int, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        heard.append(rows)
        return usual_product(rows, states, weight, bias)

    def exchanged(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        heard.append(states[..., 0].numel())
        return exchanged_product(states, weight, bias)

    monkeypatch.setattr(products, "LARGE", 1)
    monkeypatch.setattr(products, "usual_product", usual)
    monkeypatch.setattr(products, "exchanged_product", exchanged)
    return heard


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What usual and exchanged products take by a clock that only they move."""
    taken = {"usual": 1.0, "exchanged": 1.0}
    now = [0.0]

    def usual(rows: int, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        now[0] += taken["usual"] * len(weight)
        return usual_product(rows, states, weight, bias)

    def exchanged(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        now[0] += taken["exchanged"] * len(weight)
        return exchanged_product(states, weight, bias)

    monkeypatch.setattr(products, "usual_product", usual)
    monkeypatch.setattr(products, "exchanged_product", exchanged)
    monkeypatch.setattr(products, "time", SimpleNamespace(thread_time=lambda: now[0]))
    return taken


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
    assert 1 < min(calls) <= FEW < max(calls) <= MANY


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
    for compute in (product, exchanged_product):
        error = float((compute(few, weight, bias) - exact[:, : rows // 2]).abs().max())
        assert error <= 1.5 * usual < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("size", [(2, 40), (2, 3, 40), (1, 9, 40)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_an_exchanged_product_has_the_shape_of_the_usual_one(
    size: tuple[int, ...], has_bias: bool
) -> None:
    layer = nn.Linear(40, 24, bias=has_bias)
    states = torch.randn(*size).transpose(0, 1).contiguous().transpose(0, 1)
    output = exchanged_product(states, layer.weight, layer.bias)
    torch.testing.assert_close(output, layer(states))
    assert output.is_contiguous()


@torch.inference_mode()
def test_only_few_rows_but_more_than_one_use_it(calls: list[int]) -> None:
    """A pass over one token computes what stock does."""
    layer = nn.Linear(8, 8)
    for rows in (1, 2, 3, 4, 64, 65):
        with few_rows(torch.zeros(1, rows), LargeProducts()):
            layer(torch.randn(1, rows, 8))
    assert calls == [2, 3, 4, 64]


@torch.inference_mode()
@pytest.mark.parametrize("rows", [2, 3, 6, 26])
@pytest.mark.parametrize(("exchanged", "wins"), [(0.85, True), (0.95, False), (3.0, False)])
def test_the_exchanged_product_is_chosen_where_it_is_clearly_faster(
    rows: int, exchanged: float, wins: bool, calls: list[int], seconds: dict[str, float]
) -> None:
    seconds["exchanged"] = exchanged
    chooses, layer = LargeProducts(), nn.Linear(8, 16)
    for _ in range(2 * TIMINGS):
        chooses(torch.randn(1, rows, 8), layer.weight, layer.bias)
    seconds["usual"] = seconds["exchanged"] = float("nan")  # nothing is timed any more
    assert list(chooses._takes_other.values()) == [wins]
    chooses(torch.randn(1, rows, 8), layer.weight, layer.bias)
    assert list(chooses._takes_other.values()) == [wins]


@torch.inference_mode()
def test_one_slow_product_decides_nothing(seconds: dict[str, float]) -> None:
    """Such as the first of a kind; a faster one of either kind counts."""
    for slow in range(2 * TIMINGS - 2):
        chooses, layer = LargeProducts(), nn.Linear(8, 16)
        for number in range(2 * TIMINGS):
            factor = 50.0 if number in (slow, slow + 2) else 1.0
            seconds["usual"], seconds["exchanged"] = factor, 0.8 * factor
            chooses(torch.randn(6, 8), layer.weight, layer.bias)
        assert list(chooses._takes_other.values()) == [True]


@torch.inference_mode()
def test_rows_and_widths_and_threads_are_chosen_for_apart(seconds: dict[str, float]) -> None:
    """Layers of one width share their choice, whatever the height of their matrices."""
    chooses, number = LargeProducts(), torch.get_num_threads()
    for width, heights in ((8, (16, 40)), (12, (16, 16))):
        for height in heights * TIMINGS:
            for rows in (2, 3, 4, LANES, LANES + 1):
                seconds["exchanged"] = 0.5 if rows == 3 or width == 12 else 2.0
                chooses(torch.randn(rows, width), torch.randn(height, width), None)
    found = {
        (kind, width): chooses._takes_other[kind, width, number]
        for kind, width, _ in chooses._takes_other
    }
    assert found == {
        (kind, width): kind == 3 or width == 12
        for kind in (2, 3, LANES, 2 * LANES)
        for width in (8, 12)
    }


@torch.inference_mode()
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_module_computes_what_it_did(has_bias: bool, calls: list[int]) -> None:
    layer = nn.Linear(16, 8, bias=has_bias)
    states = torch.randn(2, 3, 16)
    with few_rows(torch.zeros(2, 3), LargeProducts()):
        output = layer(states)
    assert calls == [6]
    torch.testing.assert_close(output, layer(states))


@torch.inference_mode()
def test_autocast_and_other_weights_are_left_alone(calls: list[int]) -> None:
    tokens, states = torch.zeros(1, 4), torch.randn(1, 4, 8)
    layer = nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16), few_rows(tokens, LargeProducts()):
        assert layer(states).dtype == torch.bfloat16
    with few_rows(tokens, LargeProducts()):
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
