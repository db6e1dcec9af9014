"""Targets with 8-bit weights by OpenVINO: the tokens of their own plain decoding, one row alone, or
of stock `generate` with the rounded weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, answers, draft, target
from stock_families import WINDOWED, model_of
from torch import Tensor

import draftlens
from draftlens.core import tree as trees
from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.result import Result
from draftlens.load_engine import pop_pass_quantization
from draftlens.models.adapter import Backbone
from draftlens.passes import attach, openvino, ordered_attention, split_pass
from draftlens.request import Request
from draftlens.streaming import Stream

ov = pytest.importorskip("openvino")
BY_NAME = {family.name: family for family in FAMILIES}


def has_integer_products() -> bool:
    """Whether OpenVINO rounds activations on this processor."""
    weights = torch.randn(64, 64)
    return not torch.allclose(product(weights)(weights), weights @ weights.T, atol=1e-3)


def product(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """A product with the 8-bit weights of a matrix, as OpenVINO computes it in a pass."""
    from openvino import opset13

    given = opset13.parameter([-1, matrix.shape[1]], ov.Type.f32)
    constant = opset13.constant(matrix.numpy())
    graph = ov.Model([opset13.matmul(given, constant, False, True)], [given])
    openvino.quantize(graph)
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": openvino.GROUP,
    }
    compiled = openvino.core().compile_model(graph, "CPU", options)
    return lambda states: torch.from_numpy(compiled([states.numpy()])[0].copy())


pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT" or not has_integer_products(),
    reason="OpenVINO rounds no activations on this processor: int8 targets are refused",
)


def rounded(family: Family, quantization: str = "int8") -> Backbone:
    """The family's model with rounded passes; its modules compute none of them."""
    backbone = Backbone.of(copy.deepcopy(target(family)))
    attach([backbone], "openvino", quantization=quantization)
    return backbone


def answer(
    backbone: Backbone, given: Any, method: Any, small: Any = None, new: int = NEW
) -> Result:
    """An answer of the model."""
    options = {"max_new_tokens": new}
    return Stream(backbone, small, Request(given, method=method, options=options)).run()


@cache
def rounded_once(name: str) -> tuple[Backbone, list[list[int]]]:
    """A model and its plain answers to the rows of the richest plan, each alone."""
    family = BY_NAME[name]
    backbone = rounded(family)
    rows = [
        answer(backbone, inputs(family, family.richest, (row,)), {"method": "plain"}).tokens[0]
        for row in range(3)
    ]
    return backbone, rows


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "internvl"])
@pytest.mark.parametrize("method", ["plain", "chain5", "eagle", "lookup"])
def test_answers_are_those_of_plain_decoding_of_one_row(name: str, method: str) -> None:
    """A ragged batch with pictures, whatever is drafted."""
    backbone, expected = rounded_once(name)
    family = BY_NAME[name]
    small = draft(family) if method in METHODS else None
    chosen = METHODS.get(method, {"method": method})
    result = answer(backbone, inputs(family, family.richest), chosen, small)
    assert result.tokens == expected
    assert result.lossless
    assert result.approximate == (openvino.ROUNDING["int8"],)


def test_logits_have_the_same_bits_in_every_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token or many, one row or three of other lengths, a prompt in one part or in several, a
    chain or a branch of a tree, over the edges of small blocks of keys."""
    monkeypatch.setattr("draftlens.passes.structure.cache_folder", lambda: tmp_path)
    for module in (ordered_attention, openvino):
        monkeypatch.setattr(module, "BLOCK", 16)
    backbone = rounded(FAMILIES[0])
    ids = torch.randint(3, 200, (3, 41), generator=torch.Generator().manual_seed(0))
    alone = read(backbone, ids[:1], 2, [1] * 39)
    for sizes in ([13] * 3, [3] * 13, [7, 16, 16]):
        assert torch.equal(read(backbone, ids[:1], 2, sizes), alone)
        assert torch.equal(read(backbone, ids, 2, sizes)[:1], alone)
    for part in (5, 16):
        monkeypatch.setattr(split_pass, "PART", part)
        monkeypatch.setattr(split_pass, "LEAST_PART", 1)
        assert torch.equal(read(backbone, ids, 30, [1] * 11)[:1], alone[:, 28:])
    ragged = read(backbone, ids, 30, [11], lengths=[30, 11, 4])
    assert torch.equal(ragged[:1], alone[:, 28:])
    branch = torch.tensor([0, 2, 5, 6, 10])  # slots of ids 30 to 34 in a pass over a tree
    tokens = torch.randint(3, 200, (1, 11), generator=torch.Generator().manual_seed(1))
    tokens[0, branch] = ids[0, 30:35]
    window = torch.eye(11, dtype=torch.bool)
    steps = torch.zeros(11, dtype=torch.long)
    for depth, slot in enumerate(branch.tolist()):
        window[slot, branch[: depth + 1]] = True
        steps[slot] = depth
    prompt, cache = begun(backbone, ids[:1, :30])
    mask = trees.attention_mask(cache.lengths, window)
    logits = backbone.forward(tokens, prompt.positions(steps[None]), cache, mask)
    assert torch.equal(logits[:, branch], alone[:, 28:33])


def begun(backbone: Backbone, ids: Tensor) -> tuple[Any, Any]:
    """A prompt and a cache that holds it."""
    prompt = backbone.text_prompt(ids)
    cache = backbone.new_cache(prompt, room=64)
    backbone.prefill(prompt, cache)
    return prompt, cache


def read(
    backbone: Backbone, ids: Tensor, start: int, sizes: list[int], lengths: Any = None
) -> Tensor:
    """Logits of the tokens after a prompt of `start` tokens, in passes of some sizes. `lengths` cut
    the prompts of further rows."""
    rows = len(ids)
    prompt, cache = begun(backbone, ids[:, :start])
    cache.truncate(lengths or [start] * rows)
    logits = []
    for size in sizes:
        done = start + sum(each.shape[1] for each in logits)
        steps = torch.arange(size) + (done - start)
        positions = prompt.positions(steps.expand(rows, -1))
        causal = torch.ones(size, size, dtype=torch.bool).tril()
        mask = trees.attention_mask(cache.lengths, causal)
        logits.append(backbone.forward(ids[:, done : done + size], positions, cache, mask))
    return torch.cat(logits, 1)


@pytest.mark.parametrize("width", [32, 96, 100])
def test_products_are_those_of_integers(width: int) -> None:
    """The same rounding in torch: groups of 32 activations by their largest, also where the last
    group is smaller."""
    generator = torch.Generator().manual_seed(width)
    matrix = torch.randn(48, width, generator=generator)
    states = torch.randn(7, width, generator=generator)
    weights, scales = openvino.int8_weights(matrix)
    expected = torch.zeros(7, 48, dtype=torch.float64)
    for part, columns in zip(states.split(32, 1), weights.double().split(32, 1), strict=True):
        unit = part.abs().amax(1, keepdim=True) / 127
        expected += unit.double() * ((part / unit).round().double() @ columns.T)
    expected *= scales.double().T
    found = product(matrix)(states)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert not torch.allclose(found, states @ (weights * scales).T, atol=1e-3)


@pytest.mark.parametrize("method", ["plain", "chain5", "eagle"])
def test_rounded_weights_answer_as_stock_generate_with_them(method: str) -> None:
    """A copy of the model has the weights; the model itself keeps its own."""
    family = FAMILIES[0]
    backbone = rounded(family, "int8-weights")
    before = backbone.model.get_input_embeddings().weight.clone()
    copied = backbone.passes.rounded_model(backbone.model)
    given = inputs(family, family.richest)
    sequences = copied.generate(**given, do_sample=False, max_new_tokens=NEW)
    small = draft(family) if method in METHODS else None
    result = answer(backbone, given, METHODS.get(method, {"method": method}), small)
    assert result.tokens == answers(copied, given, sequences)
    assert result.approximate == (openvino.ROUNDING["int8-weights"],)
    assert torch.equal(backbone.model.get_input_embeddings().weight, before)


def test_what_only_the_modules_can_compute_is_refused() -> None:
    """Attention that is measured, and features between layers."""
    backbone, _ = rounded_once("llava")
    given = inputs(FAMILIES[0], "image")
    with pytest.raises(UnsupportedModelError, match="round nothing"):
        answer(backbone, given, {"method": "specvlm", "draft": "self"})
    family = BY_NAME["qwen3_vl"]
    backbone = rounded(family)
    with pytest.raises(UnsupportedModelError, match="round nothing"):
        answer(backbone, inputs(family, "image"), {"method": "plain"})
    assert answer(backbone, inputs(family, "text"), {"method": "plain"}).lossless


def test_calls_by_default_leave_rounded_passes() -> None:
    """The first call of a model takes the passes that are there, the second one looks for some."""
    backbone, expected = rounded_once("llava")
    family = BY_NAME["llava"]
    for _ in range(2):
        given = inputs(family, family.richest)
        result = draftlens.generate(backbone, given, method="plain", max_new_tokens=NEW)
        assert result.tokens == expected
        assert result.approximate == (openvino.ROUNDING["int8"],)


def test_a_target_that_cannot_be_rounded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where logits depend on the size of a pass, below float32, and without an engine."""
    monkeypatch.setattr(openvino, "GROUP", 0)  # no activations are rounded
    with pytest.raises(UnsupportedModelError, match="depend on the number of tokens"):
        rounded(FAMILIES[0])
    with pytest.raises(UnsupportedModelError, match="neither sliding windows nor shared keys"):
        attach([Backbone(model_of(WINDOWED[0]))], "openvino", quantization="int8")
    low = Backbone.of(copy.deepcopy(target(FAMILIES[0])).bfloat16())
    with pytest.raises(UnsupportedModelError, match="float32 only"):
        attach([low], "openvino", quantization="int8-weights")
    with pytest.raises(ConfigError, match="quantization='int8-weights' of passes needs"):
        pop_pass_quantization({"quantization": "int8-weights"}, False, "quantization")
    assert pop_pass_quantization({"quantization": "int8"}, False, "quantization") is None
    for device, expected in (("cpu", "int8"), ("cuda", None)):
        words = {"quantization": "int8", "device": device, "draft_device": "cpu"}
        assert pop_pass_quantization(words, "auto", "quantization") == expected


def test_passes_beyond_a_block() -> None:
    """A chain is read in parts, with the same bits; a tree is refused."""
    backbone, _ = rounded_once("llava")
    width = ordered_attention.BLOCK + 3
    ids = torch.randint(3, 200, (1, 2 + width), generator=torch.Generator().manual_seed(0))
    whole = read(backbone, ids, 2, [width])
    assert torch.equal(read(backbone, ids, 2, [200, 59]), whole)
    prompt, cache = begun(backbone, ids[:, :2])
    mask = trees.attention_mask(cache.lengths, torch.eye(width, dtype=torch.bool))
    with pytest.raises(UnsupportedModelError, match="at most 256"):
        backbone.forward(ids[:, 2:], prompt.positions(torch.zeros(1, width).long()), cache, mask)
