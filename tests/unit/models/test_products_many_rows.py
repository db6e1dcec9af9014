"""Products of many rows, by the faster of two libraries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target
from torch import Tensor
from torch.nn.functional import linear

import draftlens
from draftlens.core import tree as trees
from draftlens.models import products as onednn_linear
from draftlens.models import products as products
from draftlens.models.adapter import Backbone
from draftlens.models.products import TIMINGS, ManyRows, many_rows, product

pytestmark = pytest.mark.skipif(
    not onednn_linear.is_available(), reason="torch was built without MKL or oneDNN"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Products of any size are computed here; how many by each library. The clock says that oneDNN
    takes half the time."""
    count = {"mkl": 0, "onednn": 0}
    now = [0.0]

    def by_mkl(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        count["mkl"] += 1
        now[0] += 2.0 * states.numel() * len(weight)
        return linear(states, weight, bias)

    def by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        count["onednn"] += 1
        now[0] += 1.0 * states.numel() * len(weight)
        return product(states, weight, bias)

    class Clocked(ManyRows):
        """`linear` must stay the function that the mode looks for."""

        def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(products, "linear", by_mkl)
                patch.setattr(products, "product", by_onednn)
                return super().__call__(states, weight, bias)

    monkeypatch.setattr(products, "WORK", 1)
    monkeypatch.setattr(products, "PASS_WORK", 1)
    monkeypatch.setattr(onednn_linear, "time", SimpleNamespace(thread_time=lambda: now[0]))
    monkeypatch.setattr("draftlens.models.products.ManyRows", Clocked)
    return count


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_tokens_equal_stock_generate(family: Family, method: str, calls: dict[str, int]) -> None:
    """In a ragged batch, for target and draft, pictures included."""
    models = [family.build() for _ in range(2)]
    models[0].load_state_dict(target(family).state_dict())
    models[1].load_state_dict(draft(family).state_dict())
    result = draftlens.generate(
        models[0],
        inputs(family, family.richest),
        draft=models[1],
        method=METHODS[method],
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, family.richest)
    assert calls["mkl"] == 2 * TIMINGS
    assert calls["onednn"] > 4 * TIMINGS


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_vision_prompt_parts_and_wide_passes_are_watched(
    family: Family, calls: dict[str, int]
) -> None:
    """Each of them computes products here."""
    backbone = Backbone(family.build())

    def computed() -> int:
        count = sum(calls.values())
        calls.update(dict.fromkeys(calls, 0))
        return count

    computed()  # by the checks of a new model
    prepared = backbone.prepare(inputs(family, family.richest), max_new_tokens=1)
    prompt = backbone.encode(prepared)
    assert computed() > 0  # by the vision tower
    cache = backbone.new_cache(prompt, 80)
    backbone.prefill(prompt, cache)
    assert computed() > 0
    tokens = torch.ones(len(prompt.lengths), 30, dtype=torch.long)
    mask = trees.attention_mask(cache.lengths, torch.ones(30, 30, dtype=torch.bool).tril())
    positions = prompt.positions(torch.arange(30).expand(len(prompt.lengths), -1))
    backbone.forward(tokens, positions, cache, mask)
    assert computed() > 0
    part = backbone.text_prompt(torch.ones(1, 4, dtype=torch.long))
    short = backbone.new_cache(part, 8)
    backbone.prefill(part, short)
    computed()
    backbone.read_on(part, short)
    assert computed() > 0


def test_a_conversation_with_a_picture(calls: dict[str, int]) -> None:
    """Features and prompts come from the cache in the second turn."""
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    picture = np.zeros([32, 32, 3], np.uint8)
    chat = engine.chat(images=picture)
    messages: list[dict[str, Any]] = []
    for question in ("What is this?", "Are you sure?"):
        answer = chat.ask(question, max_new_tokens=8)
        content = [{"type": "text", "text": question}]
        messages.append({"role": "user", "content": content})
        messages[0]["content"][:0] = [{"type": "image", "image": picture}][: 2 - len(messages)]
        given = engine.read(messages=messages).target
        ids = engine.target.backbone.model.generate(**given, do_sample=False, max_new_tokens=8)
        assert answer.tokens[0] == ids[0, given["input_ids"].shape[1] :].tolist()
        messages.append({"role": "assistant", "content": answer.text})
    assert calls["onednn"] > 4 * TIMINGS


@pytest.mark.parametrize(("seconds", "by_onednn"), [(0.89, True), (0.91, False), (2.0, False)])
def test_the_faster_library_computes_later_products(
    monkeypatch: pytest.MonkeyPatch, seconds: float, by_onednn: bool
) -> None:
    """By the time for a multiplication, since products differ in size; for each number of
    threads."""
    now = [0.0]
    taken: list[str] = []

    def computed(name: str, rate: float) -> object:
        def compute(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            now[0] += rate * states.numel() * len(weight)
            taken.append(name)
            return linear(states, weight, bias)

        return compute

    monkeypatch.setattr(products, "linear", computed("mkl", 1.0))
    monkeypatch.setattr(products, "product", computed("onednn", seconds))
    monkeypatch.setattr(onednn_linear, "time", SimpleNamespace(thread_time=lambda: now[0]))
    many = ManyRows()
    for width in range(1, 2 * TIMINGS + 1):
        many(torch.ones(3, 5 * width), torch.ones(4, 5 * width), None)
    assert taken == ["mkl", "onednn"] * TIMINGS
    many(torch.ones(3, 5), torch.ones(4, 5), None)
    assert taken[-1] == ("onednn" if by_onednn else "mkl")
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    many(torch.ones(3, 5), torch.ones(4, 5), None)
    assert taken[-1] == "mkl"  # timed anew


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(70,), (2, 40)])
def test_a_product_is_that_of_linear(shape: tuple[int, ...], bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(*shape, 48, generator=generator)
    weight = torch.randn(32, 48, generator=generator)
    added = torch.randn(32, generator=generator) if bias else None
    many = ManyRows()
    for _ in range(2 * TIMINGS + 1):
        torch.testing.assert_close(many(states, weight, added), linear(states, weight, added))


def test_what_stays_with_torch(calls: dict[str, int]) -> None:
    """Passes with little work, other dtypes, transposed weights, gradients and autocast."""
    many = ManyRows()
    states, weight = torch.ones(80, 8), torch.ones(8, 8)

    def run(states: Tensor, weight: Tensor, work: int = 1) -> int:
        computed: list[Tensor] = []
        many_of = lambda *given: computed.append(linear(*given)) or computed[-1]  # noqa: E731
        with many_rows(work, lambda: many_of):  # type: ignore[arg-type, return-value]
            linear(states, weight)
        return len(computed)

    with torch.no_grad():
        assert run(states, weight) == 1
        assert run(states, weight, work=0) == 0
        assert run(states.bfloat16(), weight.bfloat16()) == 0
        assert run(states, weight.t()) == 0
        with torch.autocast("cpu"):
            assert run(states, weight) == 0
    assert run(states, weight) == 0
    assert many._takes_other == {}
