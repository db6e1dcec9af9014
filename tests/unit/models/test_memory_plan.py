"""Memory by configurations: the weights and caches of the models themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, Family
from stock import target
from stock_families import STOCK_FAMILIES, StockFamily, model_of

import draftlens
from draftlens.models.memory_plan import PROCESS_BYTES, MemoryPlan, ModelMemory

WINDOWED = ("Gemma3", "Gemma4", "Cohere2Vision")
SLIDING = [family for family in STOCK_FAMILIES if family.name in WINDOWED]
WITH_STATES = [family for family in STOCK_FAMILIES if family.name in ("Qwen3_5", "Lfm2Vl")]
TOKENS = 6

SMALL = ModelMemory(parameters=1000, linear=600, text=500, per_token=10)


def cached_elements(model: Any) -> int:
    """Elements of keys and values after a text, in stock `generate`."""
    ids = torch.arange(TOKENS)[None] + 40
    output = model.generate(
        input_ids=ids, max_new_tokens=1, do_sample=False, return_dict_in_generate=True
    )
    layers = output.past_key_values.layers
    kept = [layer for layer in layers if getattr(layer, "keys", None) is not None]
    return sum(layer.keys.numel() + layer.values.numel() for layer in kept)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_family_by_its_configuration(family: Family) -> None:
    model = target(family)
    found = ModelMemory.of(model.config)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.keys(TOKENS, 1) == cached_elements(model)
    assert found.window == 0


@pytest.mark.parametrize("family", SLIDING, ids=str)
def test_sliding_windows_and_shared_keys(family: StockFamily) -> None:
    model = model_of(family)
    found = ModelMemory.of(model.config)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.window > 0 < found.per_token_windowed
    assert found.per_token + found.per_token_windowed == cached_elements(model) / TOKENS
    many = 100 * found.window
    kept = found.window + found.window // 4
    assert found.keys(many, 2) == 2 * (found.per_token * many + found.per_token_windowed * kept)


@pytest.mark.parametrize("family", WITH_STATES, ids=str)
def test_layers_with_states_keep_no_keys(family: StockFamily) -> None:
    model = model_of(family)
    found = ModelMemory.of(model.config)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert 0 < found.keys(TOKENS, 1) == cached_elements(model)


def test_the_text_is_what_passes_have_a_copy_of() -> None:
    model = target(FAMILIES[0])
    decoder = model.get_decoder()
    head = model.get_output_embeddings().weight.numel()
    own = sum(each.numel() for each in decoder.parameters())
    embeddings = model.get_input_embeddings().weight.numel()
    assert ModelMemory.of(model.config).text == own - embeddings + head


def test_precisions() -> None:
    """The head and the embeddings stay in 16 bits."""
    assert [SMALL.weights(name) for name in ("float32", "bfloat16", "8bit", "4bit")] == [
        4000,
        2000,
        400 * 2 + 600,
        400 * 2 + 600 * 0.5625,
    ]


def test_a_plan_adds_up() -> None:
    draft = ModelMemory(parameters=100, linear=60, text=50, per_token=2)
    plan = MemoryPlan(SMALL, draft, "float32", has_copy=True)
    assert plan.copies == 4 * 500 + 50
    assert plan.fixed == PROCESS_BYTES + 4000 + 400 + 2050
    assert plan.keys(3) == 3 * 4 * 12
    assert plan.most_tokens(plan.fixed + 4 * 12 * 7 + 5) == 7
    assert plan.most_tokens(plan.fixed - 1) == 0
    alone = MemoryPlan(SMALL, None, "bfloat16")
    assert alone.fixed == PROCESS_BYTES + 2000
    assert alone.keys(3) == 3 * 2 * 10


def test_what_generates_no_text_is_refused() -> None:
    from transformers import ViTConfig

    with pytest.raises(draftlens.UnsupportedModelError, match="no class of transformers"):
        ModelMemory.of(ViTConfig())
