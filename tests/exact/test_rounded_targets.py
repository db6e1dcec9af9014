"""Targets with 8- and 4-bit weights by OpenVINO: the tokens of their own plain decoding, one row
alone, or of stock `generate` with the rounded weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, answers, draft, target
from stock_families import WINDOWED, model_of
from torch import Tensor
from transformers import AutoModelForImageTextToText

import draftlens
from draftlens.core import tree as trees
from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.result import Result
from draftlens.load_engine import pop_pass_quantization
from draftlens.models.adapter import Backbone
from draftlens.models.media_features import ENCODED
from draftlens.models.prompt import remembering
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.rounded_weights import (
    RoundedLinear,
    RoundedMatrix,
    RoundedPixelLinear,
    group_of,
    pixel_layers,
)
from draftlens.passes import attach, openvino, ordered_attention, split_pass
from draftlens.passes.quantization import rounding_engine
from draftlens.passes.structure import weight_bytes
from draftlens.request import Request
from draftlens.streaming import Stream

ov = pytest.importorskip("openvino")
BY_NAME = {family.name: family for family in FAMILIES}


ROUNDED_TO_8_BITS = (
    "8-bit weights and activations of the language model",
    openvino.PIXELS_ROUNDED,
)


def has_integer_products() -> bool:
    """Whether OpenVINO rounds activations on this processor."""
    weights = torch.randn(64, 64)
    values = RoundedMatrix.of(weights, 8).values()
    return not torch.allclose(product(weights)(weights), weights @ values.T, atol=1e-3)


def product(matrix: Tensor, bits: int = 8) -> Callable[[Tensor], Tensor]:
    """A product with the rounded weights of a matrix, as OpenVINO computes it in a pass."""
    from openvino import opset13

    given = opset13.parameter([-1, matrix.shape[1]], ov.Type.f32)
    constant = opset13.constant(matrix.numpy())
    # The output head has 8 bits, so that it is another product here.
    both = opset13.matmul(given, constant, False, True)
    head = opset13.matmul(both, opset13.constant(torch.eye(len(matrix)).numpy()), False, False)
    graph = ov.Model([head, both], [given])
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": openvino.round_products(graph, bits),
    }
    compiled = openvino.core().compile_model(graph, "CPU", options)
    return lambda states: torch.from_numpy(compiled([states.numpy()])[1].copy())


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
def rounded_once(name: str, quantization: str = "int8") -> tuple[Backbone, list[list[int]]]:
    """A model and its plain answers to the rows of the richest plan, each alone."""
    family = BY_NAME[name]
    backbone = rounded(family, quantization)
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
    assert result.approximate == ROUNDED_TO_8_BITS


@pytest.mark.parametrize("method", ["plain", "chain5", "eagle"])
def test_answers_with_4_bits_are_those_of_plain_decoding_of_one_row(method: str) -> None:
    """As with 8 bits, which its output head has."""
    backbone, expected = rounded_once("qwen2_5_vl", "int4")
    family = BY_NAME["qwen2_5_vl"]
    small = draft(family) if method in METHODS else None
    chosen = METHODS.get(method, {"method": method})
    result = answer(backbone, inputs(family, family.richest), chosen, small)
    assert result.tokens == expected
    of_text = "4-bit weights and 8-bit activations of the language model"
    assert result.approximate == (of_text, openvino.PIXELS_ROUNDED)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_logits_have_the_same_bits_in_every_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    """One token or many, one row or three of other lengths, a prompt in one part or in several, a
    chain or a branch of a tree, over the edges of small blocks of keys."""
    monkeypatch.setattr("draftlens.passes.structure.cache_folder", lambda: tmp_path)
    for module in (ordered_attention, openvino, split_pass):
        monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(ordered_attention, "STEP", 4)
    backbone = rounded(FAMILIES[0], quantization)
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


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [32, 96, 100, 192, 256])
def test_products_are_those_of_integers(width: int, bits: int) -> None:
    """The same rounding in torch: activations of a group by their largest, also where the last
    group is smaller, and 4-bit weights in groups of the same size."""
    generator = torch.Generator().manual_seed(width)
    matrix = torch.randn(48, width, generator=generator)
    states = torch.randn(7, width, generator=generator)
    group = group_of([width])
    rounded = RoundedMatrix.of(matrix, bits)
    assert rounded.bits == (8 if width == 100 else bits)
    expected = torch.zeros(7, 48, dtype=torch.float64)
    values = rounded.values()
    for part, columns in zip(states.split(group, 1), values.split(group, 1), strict=True):
        unit = part.abs().amax(1, keepdim=True) / 127
        expected += unit.double() * ((part / unit).round().double() @ columns.double().T)
    found = product(matrix, bits)(states)
    assert torch.allclose(found.double(), expected, atol=2e-5)
    assert not torch.allclose(found, states @ values.T, atol=1e-3)
    steps = rounded.scales.flatten(1).repeat_interleave(width // rounded.scales.shape[1], 1)
    assert ((values - matrix).abs() <= 0.5001 * steps).all()


@pytest.mark.parametrize(
    ("method", "quantization"),
    [
        ("plain", "int8-weights"),
        ("chain5", "int4-weights"),
        ("eagle", "int8-weights"),
    ],
)
def test_rounded_weights_answer_as_stock_generate_with_them(method: str, quantization: str) -> None:
    """A copy of the model has the weights; the model itself keeps its own."""
    family = FAMILIES[0]
    backbone = rounded(family, quantization)
    before = backbone.model.get_input_embeddings().weight.clone()
    copied = backbone.passes.rounded_model(backbone.model)
    given = inputs(family, family.richest)
    sequences = copied.generate(**given, do_sample=False, max_new_tokens=NEW)
    small = draft(family) if method in METHODS else None
    result = answer(backbone, given, METHODS.get(method, {"method": method}), small)
    assert result.tokens == answers(copied, given, sequences)
    assert result.approximate == (f"{quantization[3]}-bit weights of the language model",)
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
        assert result.approximate == ROUNDED_TO_8_BITS


def test_a_target_that_cannot_be_rounded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where logits depend on the size of a pass, below float32, and without an engine."""
    monkeypatch.setattr(openvino, "group_of", lambda inputs: 0)  # no activations are rounded
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


def test_trees_of_documents_fit_into_a_pass() -> None:
    """The longest draft of method `hsd` has as many tokens as a pass verifies, with the last one
    of the answer."""
    backbone, _ = rounded_once("llava")
    given = inputs(BY_NAME["llava"], "text", (0,))
    new = 2 * ordered_attention.BLOCK
    expected = answer(backbone, given, {"method": "plain"}, new=new).tokens
    extras = {"references": [expected]}
    options = {"max_new_tokens": new}
    method = {"method": "hsd", "num_speculative_tokens": ordered_attention.BLOCK}
    request = Request(given, method=method, options=options, extras=extras)
    result = Stream(backbone, None, request).run()
    assert result.tokens == expected
    assert max(result.stats.accepted_by_reference[0].values()) >= ordered_attention.BLOCK - 1


def loaded_rounded(family: Family, folder: Path, quantization: str) -> Backbone:
    """The family's model, from a checkpoint in bfloat16 whose matrices are read one by one."""
    config = rounding_engine("openvino", quantization).loading()
    copy.deepcopy(target(family)).bfloat16().save_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config
    )
    backbone = Backbone.of(model)
    attach([backbone], "openvino", quantization=quantization)
    return backbone


@pytest.mark.parametrize("quantization", ["int8", "int8-weights", "int4", "int4-weights"])
def test_a_checkpoint_is_read_into_rounded_weights(quantization: str, tmp_path: Path) -> None:
    """The logits are those of a model that was read in full. Its layers keep no float32 matrices,
    and no integers where only these passes use them."""
    family = BY_NAME["qwen2_5_vl"]
    backbone = loaded_rounded(family, tmp_path, quantization)
    stock = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    whole = Backbone.of(stock)
    attach([whole], "openvino", quantization=quantization)
    layers = [each for each in backbone.decoder.modules() if isinstance(each, RoundedLinear)]
    assert len(layers) == 7 * backbone.text_config.num_hidden_layers
    assert not any(type(each) is torch.nn.Linear for each in backbone.decoder.modules())
    assert all(each.weight is None for each in layers)
    has_activations = quantization in ("int8", "int4")
    assert all((each.integers is None) == has_activations for each in layers)
    integers = sum(each.integers.nbytes for each in layers if each.integers is not None)
    own = sum(each.nbytes for each in backbone.model.parameters())
    assert weight_bytes(backbone) >= own + integers
    assert has_activations or integers > 0
    ids = torch.randint(3, 200, (1, 20), generator=torch.Generator().manual_seed(0))
    assert torch.equal(read(backbone, ids, 2, [5, 13]), read(whole, ids, 2, [5, 13]))
    names = pixel_layers(backbone.model)
    kept = [backbone.model.get_submodule(name) for name in names]
    assert names == pixel_layers(stock) != []
    assert all(isinstance(each, RoundedPixelLinear) == has_activations for each in kept)
    given = inputs(family, family.richest)
    assert torch.equal(embeds(backbone, given), embeds(whole, given))
    found = answer(backbone, given, METHODS["chain5"], draft(family))
    if has_activations:
        assert found.tokens == answer(whole, given, {"method": "plain"}).tokens
        for compile, other in (("auto", None), ("openvino", "int8-weights")):
            with pytest.raises(UnsupportedModelError, match="load it again"):
                attach([backbone], compile, quantization=other)
    else:
        copied = backbone.passes.rounded_model(backbone.model)
        sequences = copied.generate(**given, do_sample=False, max_new_tokens=NEW)
        assert found.tokens == answers(copied, given, sequences)


def test_load_reads_a_rounded_target() -> None:
    """Its weights are rounded while they are read, and nothing else can compute its passes."""
    engine = draftlens.load(draft=None, device="cpu", quantization="int8", calibrate=False)
    layers = list(engine.target.backbone.decoder.modules())
    assert not any(type(each) is torch.nn.Linear for each in layers)
    result = engine.generate("What happens?", method="lookup", max_new_tokens=8)
    assert len(result.tokens[0]) == 8
    assert result.approximate == ROUNDED_TO_8_BITS
    with pytest.raises(UnsupportedModelError, match="load it again"):
        engine.compile("auto")


@pytest.mark.parametrize(("name", "kind"), [("smolvlm", "images"), ("qwen2_5_vl", "mixed")])
def test_features_of_a_picture_do_not_depend_on_the_others(name: str, kind: str) -> None:
    """Embeddings of a row have the same bits in a batch, alone, and with a picture that a cache has
    from an earlier prompt."""
    family = BY_NAME[name]
    backbone = rounded(family)
    whole = embeds(backbone, inputs(family, kind, (0, 1, 2)))
    alone = [embeds(backbone, inputs(family, kind, (row,)))[0] for row in range(3)]
    backbone.prompt_cache = PromptCache("1GB")
    with remembering(""):
        embeds(backbone, inputs(family, "image", (0,)))
        cached = [embeds(backbone, inputs(family, kind, (row,)))[0] for row in range(3)]
    for row in range(3):
        assert torch.equal(cached[row], alone[row])
        assert torch.equal(whole[row, : len(alone[row])], alone[row])


@pytest.mark.parametrize("name", ["llava_onevision", "smolvlm", "qwen3_vl", "internvl"])
def test_the_vision_tower_multiplies_integers(name: str) -> None:
    """Each linear layer outside of the language model has the products of the integers of its
    input and matrix; whatever encodes pixels, before `generate`, in it, or in the model's call."""
    family = BY_NAME[name]
    backbone = rounded(family)
    layers = {n: backbone.model.get_submodule(n) for n in pixel_layers(backbone.model)}
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for each, layer in layers.items():
        layer.register_forward_hook(
            lambda _, given, output, each=each: found.setdefault(each, []).append(
                (given[0], output)
            )
        )
    read_pixels = embeds(backbone, inputs(family, "image"))
    assert found
    for each, products in found.items():
        layer = layers[each]
        values = RoundedMatrix.of(layer.weight, 8).values()
        for given, output in products:
            assert torch.allclose(output, by_integers(given, values, layer.bias), atol=2e-4)
            assert not torch.equal(output, torch.nn.functional.linear(given, values, layer.bias))
    stock = embeds(Backbone.of(copy.deepcopy(target(family))), inputs(family, "image"))
    assert 0 < torch.dist(read_pixels, stock) < 0.1 * stock.norm()


def test_pixels_that_the_call_encodes_have_the_same_features() -> None:
    """`generate` of other versions leaves pixels to the first call of the model."""
    family = BY_NAME["qwen2_5_vl"]
    backbone = rounded(family)
    given = inputs(family, "image", (0,))
    prepared = backbone.prepare(given, max_new_tokens=1)
    kept = {name: each for name, each in prepared.model_kwargs.items() if name != ENCODED}
    assert len(kept) < len(prepared.model_kwargs)
    pixels = {name: given[name] for name in given if name not in ("input_ids", "attention_mask")}
    left = replace(prepared, model_kwargs={**kept, **pixels})
    assert torch.equal(backbone.encode(left).embeds, backbone.encode(prepared).embeds)


def test_products_that_are_wrong_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = rounded(BY_NAME["llava_onevision"])
    right = openvino.integer_product
    monkeypatch.setattr(openvino, "integer_product", lambda *args: lambda rows: -right(*args)(rows))
    with pytest.raises(
        UnsupportedModelError, match=r"8-bit products of model\.vision_tower.* wrong"
    ):
        embeds(backbone, inputs(BY_NAME["llava_onevision"], "image"))


def test_products_in_which_large_values_cancel_out_are_those_of_float32() -> None:
    """A connector that takes from a picture's features what they have in common."""
    family = BY_NAME["llava"]
    backbone = Backbone.of(copy.deepcopy(target(family)))
    layer = backbone.model.model.multi_modal_projector.linear_2
    seen: list[tuple[Tensor, Tensor]] = []
    layer.register_forward_hook(lambda _, given, output: seen.append((given[0], output)))
    embeds(backbone, inputs(family, "image"))
    rows = seen.pop()[0].reshape(-1, layer.in_features)[:4]
    common = torch.linalg.qr(rows.T).Q
    with torch.no_grad():
        layer.weight.mul_(100)
        layer.weight.sub_(0.999 * layer.weight @ common @ common.T)
        layer.bias.zero_()
    attach([backbone], "openvino", quantization="int8")
    embeds(backbone, inputs(family, "image"))
    given, output = seen.pop()
    values = RoundedMatrix.of(layer.weight, 8).values()
    assert torch.equal(output, torch.nn.functional.linear(given, values))


def by_integers(states: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """A product of activations that are rounded in groups, the last of which may be smaller."""
    parts = []
    group = next(size for size in (128, 64, 32) if size <= states.shape[-1])
    for part in states.detach().split(group, -1):
        unit = (part.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-30)
        parts.append(unit * (part / unit).round())
    return torch.nn.functional.linear(torch.cat(parts, -1), values, bias)


def test_a_draft_with_rounded_weights_reads_pixels_with_them() -> None:
    """Its features are those of integers; the target's answer is that of stock `generate`."""
    family = BY_NAME["llava_onevision"]
    small = Backbone.of(copy.deepcopy(draft(family)))
    given = inputs(family, "video")
    unrounded = embeds(small, given)
    backbone = Backbone.of(copy.deepcopy(target(family)))
    attach([backbone, small], "openvino", draft_quantization="int8")
    assert 0 < torch.dist(embeds(small, given), unrounded) < 0.1 * unrounded.norm()
    result = answer(backbone, given, METHODS["chain5"], small)
    sequences = backbone.model.generate(**given, do_sample=False, max_new_tokens=NEW)
    assert result.tokens == answers(backbone.model, given, sequences)
    assert result.approximate == ()


def test_a_prompt_cache_keeps_rounded_and_other_prompts_apart() -> None:
    engine = draftlens.load(
        draft=None, device="cpu", method="plain", compile=False, prompt_cache="100MB"
    )
    asked = {"prompt": "What happens?", "max_new_tokens": 4}
    engine.generate(**asked)
    assert engine.generate(**asked).stats.cached_tokens > 0
    engine.compile("openvino", quantization="int8")
    assert engine.generate(**asked).stats.cached_tokens == 0
    assert engine.generate(**asked).stats.cached_tokens > 0


def embeds(backbone: Backbone, given: Any) -> Tensor:
    """What the language model reads of a prompt."""
    return backbone.encode(backbone.prepare(given, max_new_tokens=1)).embeds
